package redisnativelock;

import java.util.concurrent.*;

/** What is done beside the threads that lock. */
final class Background {
  private static final System.Logger LOG = System.getLogger("redisnativelock");

  private Background() {}

  static void warn(String what, Throwable error) {
    LOG.log(System.Logger.Level.WARNING, error == null ? what : what + ": " + error);
  }

  static CompletableFuture<Void> after(long nanos) {
    return new CompletableFuture<Void>().completeOnTimeout(null, Math.max(0, nanos), TimeUnit.NANOSECONDS);
  }

  /** Waits for it, though the thread be interrupted: that is told to it afterwards. */
  static <T> T join(CompletableFuture<T> future, long nanos) throws ExecutionException, TimeoutException {
    long begun = System.nanoTime();
    boolean wasInterrupted = false;
    try {
      while (true) {
        try {
          return future.get(nanos - (System.nanoTime() - begun), TimeUnit.NANOSECONDS);
        } catch (InterruptedException later) {
          wasInterrupted = true;
        }
      }
    } finally {
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** How long to wait before what failed is tried again: ever longer, never in step with others. */
  static long pause(int failures) {
    long most = Math.min(20 * Wire.MILLISECOND << Math.min(failures, 10), 1000 * Wire.MILLISECOND);
    return ThreadLocalRandom.current().nextLong(most / 2, most);
  }
}
