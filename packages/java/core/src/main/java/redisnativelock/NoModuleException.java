package redisnativelock;

/** The server has no lock module, or one that is too old. */
public final class NoModuleException extends NativeLockException {
  private static final long serialVersionUID = 1;

  NoModuleException(String message, Throwable cause) {
    super(message, cause);
  }
}
