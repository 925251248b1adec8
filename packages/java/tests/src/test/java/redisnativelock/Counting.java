package redisnativelock;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;

/** Threads that count together. They miss a round where two are inside a lock at once. */
final class Counting {
  private int counter;

  private Counting() {}

  /** Begins a thread for each of the locks, which are asked for in each round. Returns how far the threads count. */
  static int upTo(int rounds, List<Supplier<Lock>> locks) throws Exception {
    Counting counting = new Counting();
    List<Threads<Void>> threads = new ArrayList<>();
    for (Supplier<Lock> lock : locks) {
      threads.add(Threads.begin(() -> {
        for (int round = 0; round < rounds; round++) {
          counting.countOne(lock.get());
        }
        return null;
      }));
    }
    for (Threads<Void> thread : threads) {
      thread.end();
    }
    return counting.counter;
  }

  private void countOne(Lock lock) {
    lock.lock();
    int seen = counter;
    Thread.yield();
    counter = seen + 1;
    lock.unlock();
  }
}
