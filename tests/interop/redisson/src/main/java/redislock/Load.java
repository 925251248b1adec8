package redislock;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * Threads that all take one lock, again and again, add one to a counter that nothing but the lock
 * guards, and write down what they did.
 */
final class Load {
  private final RedissonClient redisson;
  private final String lock;
  private final String counter;
  private final int first;
  private final int threads;
  private final long leaseMs;
  private final long thinkMs;
  private final long end;
  private final PrintWriter history;
  private final AtomicLong added = new AtomicLong();

  /**
   * The words: {@code THREAD load LOCK COUNTER FIRST THREADS LEASE_MS THINK_MS SECONDS FILE},
   * where FIRST is the number of the first thread in the history, which goes to FILE.
   */
  Load(RedissonClient redisson, String[] words) throws IOException {
    this.redisson = redisson;
    lock = words[2];
    counter = words[3];
    first = Integer.parseInt(words[4]);
    threads = Integer.parseInt(words[5]);
    leaseMs = Long.parseLong(words[6]);
    thinkMs = Long.parseLong(words[7]);
    end = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(words[8]));
    history = new PrintWriter(Files.newBufferedWriter(Path.of(words[9])));
  }

  /** Returns how much all threads have added to the counter. */
  long run() throws InterruptedException {
    List<Thread> running = new ArrayList<>();
    for (int number = first; number < first + threads; number++) {
      int client = number;
      Thread thread = new Thread(() -> runThread(client));
      thread.start();
      running.add(thread);
    }
    for (Thread thread : running) {
      thread.join();
    }
    history.close();
    return added.get();
  }

  private void runThread(int client) {
    String owner = redisson.getId() + ":" + Thread.currentThread().getId();
    RLock mutex = redisson.getLock(lock);
    RBucket<String> guarded = redisson.getBucket(counter, StringCodec.INSTANCE);
    Random random = new Random(client);
    while (System.nanoTime() < end) {
      try {
        int holds = random.nextInt(4) == 0 ? 2 : 1;
        for (int hold = 1; hold <= holds; hold++) {
          acquire(mutex, client, owner, random.nextBoolean());
        }
        guarded.set("" + (Long.parseLong(guarded.get()) + 1));
        added.incrementAndGet();
        for (int hold = holds; hold >= 1; hold--) {
          release(mutex, client, owner, hold == 1);
        }
        Thread.sleep(random.nextLong(2 * thinkMs + 1));
      } catch (InterruptedException error) {
        return;
      }
    }
  }

  /** Takes the lock for a lease, or for as long as the watchdog renews it. */
  private void acquire(RLock mutex, int client, String owner, boolean watched) {
    long sent = System.nanoTime();
    if (watched) {
      mutex.lock();
    } else {
      mutex.lock(leaseMs, TimeUnit.MILLISECONDS);
    }
    String request = "{\"Acquire\":{\"lease_ms\":" + leaseMs
        + ",\"block_ms\":0,\"mode\":\"Exclusive\",\"session\":false}}";
    write(client, owner, request, sent, "GrantedWithoutToken");
  }

  private void release(RLock mutex, int client, String owner, boolean last) {
    long sent = System.nanoTime();
    String outcome = last ? "Released" : "StillHeld";
    try {
      mutex.unlock();
    } catch (IllegalMonitorStateException error) {
      outcome = "NotHeld";
    }
    write(client, owner, "{\"Release\":{}}", sent, outcome);
  }

  /** Writes an operation as the history checker reads it. */
  private void write(int client, String owner, String request, long sent, String outcome) {
    long answered = System.nanoTime();
    String line = "{\"client\":%d,\"connection\":0,\"lock\":\"%s\",\"owner\":\"%s\",\"request\":%s,\"sent\":%d,"
        + "\"answered\":%d,\"queued\":null,\"outcome\":\"%s\"}";
    history.println(String.format(line, client, lock, owner, request, sent, answered, outcome));
  }
}
