package redisnativelock;

/** Waiting would close a cycle of owners that wait for each other. The message names it. */
public final class DeadlockException extends NativeLockException {
  private static final long serialVersionUID = 1;

  DeadlockException(String message, Throwable cause) {
    super(message, cause);
  }
}
