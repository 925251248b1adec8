package redisnativelock;

import java.util.List;
import java.util.concurrent.*;
import java.util.stream.IntStream;

/** A thread with a result. */
final class Threads<T> extends FutureTask<T> {
  private Threads(Callable<T> work) {
    super(work);
  }

  static <T> Threads<T> begin(Callable<T> work) {
    Threads<T> begun = new Threads<>(work);
    new Thread(begun).start();
    return begun;
  }

  /** What a thread does whose number this is. */
  interface Numbered {
    void run(int number) throws Exception;
  }

  /** So many of them. */
  static List<Threads<Void>> begin(int threads, Numbered work) {
    return IntStream.range(0, threads).mapToObj(number -> Threads.<Void>begin(() -> {
      work.run(number);
      return null;
    })).toList();
  }

  T end() throws Exception {
    return get(60, TimeUnit.SECONDS);
  }

  static void endAll(List<? extends Future<?>> threads) throws Exception {
    for (Future<?> thread : threads) {
      thread.get(60, TimeUnit.SECONDS);
    }
  }
}
