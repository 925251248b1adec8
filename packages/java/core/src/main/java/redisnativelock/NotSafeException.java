package redisnativelock;

/** Too few replicas have acknowledged it ({@code NOREPLICAS}): it is not known to be safe. */
public final class NotSafeException extends NativeLockException {
  private static final long serialVersionUID = 1;

  NotSafeException(String message, Throwable cause) {
    super(message, cause);
  }
}
