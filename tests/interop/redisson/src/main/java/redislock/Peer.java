package redislock;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A process that locks with Redisson, as its standard input says.
 *
 * <p>A line is {@code THREAD COMMAND LOCK [NUMBER...]}, where another kind of lock than RLock
 * stands before the command: {@code fair:lock}. Each thread that is named works off its lines in
 * turn, for Redisson takes a thread for an owner, and answers each with a line {@code THREAD SENT
 * ANSWERED RESULT}. The times are nanoseconds of the machine's monotonic clock, which other
 * processes read too. The process ends with its input.
 */
public final class Peer {
  private final RedissonClient redisson;
  private final Map<String, ExecutorService> threads = new HashMap<>();

  private Peer(RedissonClient redisson) {
    this.redisson = redisson;
  }

  /** The arguments: {@code single | cluster}, the server's address, the watchdog's lease in ms. */
  public static void main(String[] arguments) throws Exception {
    Config config = new Config();
    config.setLockWatchdogTimeout(Long.parseLong(arguments[2]));
    if (arguments[0].equals("cluster")) {
      config.useClusterServers().addNodeAddress(arguments[1]);
    } else {
      config.useSingleServer().setAddress(arguments[1]).setConnectionMinimumIdleSize(4);
    }
    Peer peer = new Peer(Redisson.create(config));
    System.out.println("ready");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      peer.obey(line.split(" "));
    }
    // Not a tidy shutdown: whoever ended the input may expect a holder that vanishes.
    Runtime.getRuntime().halt(0);
  }

  private void obey(String[] words) {
    threads.computeIfAbsent(words[0], name -> Executors.newSingleThreadExecutor()).execute(() -> {
      long sent = System.nanoTime();
      String result;
      try {
        result = run(words);
      } catch (Exception error) {
        result = error.getClass().getSimpleName();
      }
      System.out.println(words[0] + " " + sent + " " + System.nanoTime() + " " + result);
    });
  }

  private String run(String[] words) throws Exception {
    int colon = words[1].indexOf(':');
    RLock lock = lock(colon < 0 ? "" : words[1].substring(0, colon), words[2]);
    switch (words[1].substring(colon + 1)) {
      case "lock":
        lock.lock();
        return "ok";
      case "lock-for":
        lock.lock(Long.parseLong(words[3]), TimeUnit.MILLISECONDS);
        return "ok";
      case "try":
        return "" + lock.tryLock(Long.parseLong(words[3]), -1, TimeUnit.MILLISECONDS);
      case "unlock":
        lock.unlock();
        return "ok";
      case "force-unlock":
        return "" + lock.forceUnlock();
      case "is-locked":
        return "" + lock.isLocked();
      case "is-held":
        return "" + lock.isHeldByCurrentThread();
      case "hold-count":
        return "" + lock.getHoldCount();
      case "ttl":
        return "" + lock.remainTimeToLive();
      case "owner":
        // The field in which RLock keeps this thread's holds.
        return redisson.getId() + ":" + Thread.currentThread().getId();
      case "load":
        return "" + new Load(redisson, words).run();
      default:
        return "unknown command " + words[1];
    }
  }

  private RLock lock(String kind, String name) {
    switch (kind) {
      case "fair":
        return redisson.getFairLock(name);
      case "fenced":
        return redisson.getFencedLock(name);
      case "read":
        return redisson.getReadWriteLock(name).readLock();
      case "write":
        return redisson.getReadWriteLock(name).writeLock();
      default:
        return redisson.getLock(name);
    }
  }
}
