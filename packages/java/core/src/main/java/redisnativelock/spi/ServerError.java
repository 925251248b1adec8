package redisnativelock.spi;

/** An error that the server has replied. */
public final class ServerError extends Exception {
  private static final long serialVersionUID = 1;

  public ServerError(String message, Throwable cause) {
    super(message, cause);
  }

  /** The first word. */
  public String code() {
    return getMessage().split(" ", 2)[0];
  }
}
