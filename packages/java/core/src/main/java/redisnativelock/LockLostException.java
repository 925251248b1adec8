package redisnativelock;

/** The hold was over before its work: not renewed in time, broken, or deleted. */
public final class LockLostException extends NativeLockException {
  private static final long serialVersionUID = 1;

  LockLostException(String message, Throwable cause) {
    super(message, cause);
  }
}
