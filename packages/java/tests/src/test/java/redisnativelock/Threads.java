package redisnativelock;

import java.util.List;
import java.util.concurrent.*;

/** A thread with a result. */
final class Threads<T> {
  final CompletableFuture<T> result = new CompletableFuture<>();
  final Thread thread;

  private Threads(Callable<T> work) {
    thread = new Thread(() -> {
      try {
        result.complete(work.call());
      } catch (Throwable error) {
        result.completeExceptionally(error);
      }
    });
  }

  static <T> Threads<T> begin(Callable<T> work) {
    Threads<T> begun = new Threads<>(work);
    begun.thread.start();
    return begun;
  }

  T end() throws Exception {
    return end(result);
  }

  static <T> void endAll(List<Threads<T>> threads) throws Exception {
    for (Threads<T> thread : threads) {
      thread.end();
    }
  }

  static <T> T end(Future<T> result) throws Exception {
    return result.get(60, TimeUnit.SECONDS);
  }
}
