package redisnativelock;

/** Two waited for one lock under one owner's name. That is a mistake, never to be sent again. */
public final class SupersededException extends NativeLockException {
  private static final long serialVersionUID = 1;

  SupersededException(String message, Throwable cause) {
    super(message, cause);
  }
}
