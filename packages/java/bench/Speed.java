import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.function.Function;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redisnativelock.Locks;
import redisnativelock.Server;
import redisnativelock.jedis.JedisAccess;
import redisnativelock.lettuce.LettuceAccess;

/** Measures this package beside Redisson, on a server of its own. The argument: seconds for each figure. */
public final class Speed {
  private Speed() {}

  public static void main(String[] arguments) throws Exception {
    double seconds = arguments.length > 0 ? Double.parseDouble(arguments[0]) : 5;
    Config config = new Config();
    RedisClient lettuce = RedisClient.create();
    try (Server server = new Server()) {
      HostAndPort address = new HostAndPort("127.0.0.1", server.port);
      config.useSingleServer().setAddress("redis://127.0.0.1:" + server.port);
      RedissonClient redisson = Redisson.create(config);
      DefaultJedisClientConfig plain = DefaultJedisClientConfig.builder().build();
      LettuceAccess access = LettuceAccess.of(lettuce, RedisURI.create("127.0.0.1", server.port));
      try (JedisPooled jedis = new JedisPooled(address, plain)) {
        Locks byJedis = Locks.create(JedisAccess.of(jedis, address, plain));
        Locks byLettuce = Locks.create(access);
        System.out.printf("%-10s%20s%20s%28s%n", "", "pair p50 us", "hand-off p50 us", "sections/s, 64 threads");
        for (int round = 0; round < 2; round++) {
          measure("Redisson", redisson::getLock, seconds);
          measure("Jedis", byJedis::lock, seconds);
          measure("Lettuce", byLettuce::lock, seconds);
        }
        byJedis.close();
        byLettuce.close();
      }
      access.close();
      redisson.shutdown();
      lettuce.shutdown();
    }
  }

  private static void measure(String name, Function<String, Lock> locks, double seconds) throws Exception {
    System.out.printf("%-10s%20.1f%20.1f%28.0f%n", name, pair(locks.apply("pair"), seconds),
        handOff(locks.apply("hand-off"), seconds), sections(locks.apply("crowd"), seconds));
  }

  private static double median(List<Long> nanos) {
    long[] sorted = nanos.stream().mapToLong(Long::longValue).sorted().toArray();
    return Arrays.stream(sorted).skip(sorted.length / 2).findFirst().orElse(0) / 1000.0;
  }

  private static double pair(Lock lock, double seconds) {
    List<Long> nanos = new ArrayList<>();
    for (long begun = System.nanoTime(); System.nanoTime() - begun < seconds * 1e9; ) {
      long from = System.nanoTime();
      lock.lock();
      lock.unlock();
      nanos.add(System.nanoTime() - from);
    }
    return median(nanos.subList(nanos.size() / 3, nanos.size()));
  }

  /** From before the release until the thread that waits has the lock. */
  private static double handOff(Lock lock, double seconds) throws InterruptedException {
    List<Long> nanos = new ArrayList<>();
    SynchronousQueue<Long> had = new SynchronousQueue<>();
    SynchronousQueue<Boolean> go = new SynchronousQueue<>();
    Thread waiter = new Thread(() -> {
      try {
        while (go.take()) {
          lock.lock();
          long now = System.nanoTime();
          lock.unlock();
          had.put(now);
        }
      } catch (InterruptedException end) {
        throw new IllegalStateException(end);
      }
    });
    waiter.start();
    for (long begun = System.nanoTime(); System.nanoTime() - begun < seconds * 1e9; ) {
      lock.lock();
      go.put(true);
      TimeUnit.MILLISECONDS.sleep(2);
      long from = System.nanoTime();
      lock.unlock();
      nanos.add(had.take() - from);
    }
    go.put(false);
    waiter.join();
    return median(nanos.subList(nanos.size() / 3, nanos.size()));
  }

  private static double sections(Lock lock, double seconds) throws InterruptedException {
    AtomicLong done = new AtomicLong();
    long end = System.nanoTime() + (long) (seconds * 1e9);
    List<Thread> threads = new ArrayList<>();
    for (int number = 0; number < 64; number++) {
      threads.add(new Thread(() -> {
        while (System.nanoTime() < end) {
          lock.lock();
          done.incrementAndGet();
          lock.unlock();
        }
      }));
    }
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      thread.join();
    }
    return done.get() / seconds;
  }
}
