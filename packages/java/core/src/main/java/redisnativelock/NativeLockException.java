package redisnativelock;

/** What went wrong. Its code says what: one of those here, or the first word of what the server replied. */
public final class NativeLockException extends RuntimeException {
  /** The hold was over before its work: not renewed in time, broken, or deleted. */
  public static final String LOST = "LOST";
  /** Waiting would close a cycle of owners that wait for each other. The message names it. */
  public static final String DEADLOCK = "DEADLOCK";
  /** Too few replicas have acknowledged it: it is not known to be safe. */
  public static final String NOT_SAFE = "NOREPLICAS";
  /** Two waited for one lock under one owner's name. That is a mistake, never to be sent again. */
  public static final String SUPERSEDED = "SUPERSEDED";
  /** The server has no lock module, or one that is too old. */
  public static final String NO_MODULE = "NOMODULE";
  /** Nobody knows whether the server got it. */
  public static final String UNANSWERED = "UNANSWERED";
  /** The client library refused it. */
  public static final String FAILED = "FAILED";

  private static final long serialVersionUID = 1;
  private final String code;

  public NativeLockException(String code, String message, Throwable cause) {
    super(message, cause);
    this.code = code;
  }

  /** An error that the server has replied. */
  public static NativeLockException replied(String reply, Throwable cause) {
    // As the server says it, and as client libraries do that know their server's commands.
    if (reply.toLowerCase().contains("unknown command")) {
      return new NativeLockException(NO_MODULE, "the server does not know LOCK.ACQUIRE: load the lock module there (a line "
          + "`loadmodule /path/to/libredislock.so` in redis.conf, then a restart)", cause);
    }
    boolean isFull = reply.contains("max number of clients");
    return new NativeLockException(isFull ? UNANSWERED : reply.split(" ", 2)[0], reply, cause);
  }

  public String code() {
    return code;
  }

  /** Whether the server has answered that the command has changed nothing. */
  boolean isRefusal() {
    return !code.equals(UNANSWERED) && !code.equals(FAILED) && !code.equals(NOT_SAFE);
  }
}
