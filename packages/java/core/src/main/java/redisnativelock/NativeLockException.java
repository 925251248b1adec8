package redisnativelock;

import redisnativelock.spi.ServerError;

/** What went wrong. Where it is this class itself, the cause is the server's refusal or the client library's error. */
public class NativeLockException extends RuntimeException {
  private static final long serialVersionUID = 1;

  NativeLockException(String message, Throwable cause) {
    super(message, cause);
  }

  static NativeLockException of(String key, Throwable error) {
    String text = key + ": " + error.getMessage();
    switch (error instanceof ServerError refusal ? refusal.code() : "") {
      case "DEADLOCK":
        return new DeadlockException(text, error);
      case "NOREPLICAS":
        return new NotSafeException(text, error);
      case "SUPERSEDED":
        return new SupersededException(text, error);
      default:
        // As the server says it, and as client libraries do that know their server's commands.
        if (String.valueOf(error.getMessage()).toLowerCase().contains("unknown command")) {
          return new NoModuleException("the server does not know LOCK.ACQUIRE: load the lock module there (a line "
              + "`loadmodule /path/to/libredislock.so` in redis.conf, then a restart)", error);
        }
        return new NativeLockException(text, error);
    }
  }
}
