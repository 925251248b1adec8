package redisnativelock;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Supplier;
import java.util.regex.*;
import java.util.stream.Stream;
import redisnativelock.spi.RedisAccess;

/** Locks on one server, behind Sentinel, or in a cluster. One for a process is enough; it is safe for all threads. */
public final class Locks implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger("redisnativelock");
  private static final Duration LONGEST = Duration.ofDays(3650);
  static final long SUSPICIOUS = 1_000 * Wire.MILLISECOND;
  private static final Pattern TOO_OLD = Pattern.compile("lock_version\\W+0\\.[01]\\.\\S*");
  /** In a cluster: a word for each slot that hashes to it. */
  private static final Map<Integer, String> TAGS = new ConcurrentHashMap<>();

  final RedisAccess access;
  /** What those hear who wait, by owner; those who waited and hold are here, too. */
  final Map<String, CompletableFuture<Wire.Told>> waits = new ConcurrentHashMap<>();
  /** What this thread has entered, by key: one hold for each section, the innermost first. */
  final ThreadLocal<Map<ByteBuffer, Deque<Hold>>> entered = ThreadLocal.withInitial(HashMap::new);
  private final Duration lease;
  private final byte[] prefix;
  private final Map<Object, Listener> listeners = new ConcurrentHashMap<>();
  private final String channel = "redislock:" + UUID.randomUUID();
  private volatile boolean isChecked;

  private Locks(RedisAccess access, Duration lease, String prefix) {
    this.access = access;
    this.lease = lease;
    this.prefix = Wire.bytes(prefix);
    checked(lease);
  }

  /** Locks with a lease of 30 seconds. */
  public static Locks create(RedisAccess access) {
    return create(access, Duration.ofSeconds(30), "");
  }

  /** Locks with this lease, which is how long one stays taken if its process dies, and a prefix before each key. */
  public static Locks create(RedisAccess access, Duration lease, String prefix) {
    return new Locks(access, lease, prefix);
  }

  /** The lock of this name, which is held by one at a time if nothing else is said. */
  public NativeLock lock(String key) {
    return lock(Wire.bytes(key));
  }

  /** The lock of a name that may be any bytes. */
  public NativeLock lock(byte[] key) {
    byte[] whole = ByteBuffer.allocate(prefix.length + key.length).put(prefix).put(key).array();
    return new NativeLock(this, whole, 1, lease, 0);
  }

  /** Ends the subscriptions; who still waits opens another. What is held stays held and renewed. */
  @Override
  public void close() {
    listeners.values().forEach(listener -> listener.end(null));
  }

  static long checked(Duration lease) {
    if (lease.toMillis() < 1 || lease.compareTo(LONGEST) > 0) {
      throw new IllegalArgumentException("a lease is a thousandth of a second to ten years");
    }
    return lease.toNanos();
  }

  /** What an error means, without what futures put around it. */
  NativeLockException meaning(Throwable error) {
    boolean isWrapped = error instanceof CompletionException || error instanceof ExecutionException;
    if (isWrapped && error.getCause() != null) {
      return meaning(error.getCause());
    } else if (error instanceof TimeoutException) {
      return new NativeLockException(NativeLockException.UNANSWERED, "no answer in time", error);
    }
    return error instanceof NativeLockException known ? known : access.meaning(error);
  }

  /** Waits for it, though interrupted, and not for the future itself: a pool's thread would run others' work meanwhile. */
  <T> T join(CompletableFuture<T> future, long nanos) {
    Semaphore ended = new Semaphore(0);
    CompletableFuture<T> bounded = future.copy().orTimeout(nanos, TimeUnit.NANOSECONDS);
    bounded.whenComplete((reply, error) -> ended.release());
    ended.acquireUninterruptibly();
    try {
      return bounded.join();
    } catch (CompletionException failure) {
      throw meaning(failure);
    }
  }

  static void warn(String what, Throwable error) {
    LOG.log(System.Logger.Level.WARNING, error == null ? what : what + ": " + error);
  }

  /** Asks once for the module's version, where that is allowed and it tells it: 0.2 is the least. */
  void checkVersion(byte[] key) {
    if (isChecked || access.slot(key) >= 0) {
      return;
    }
    Object info = null;
    try {
      info = join(access.send(Wire.command("INFO", "lock")), 500 * Wire.MILLISECOND);
      isChecked = true;
    } catch (NativeLockException theAcquireWillSay) {
      isChecked = theAcquireWillSay.isRefusal();
    }
    Matcher old = TOO_OLD.matcher(info instanceof byte[] text ? new String(text) : "");
    if (old.find()) {
      isChecked = false;
      throw new NativeLockException(NativeLockException.NO_MODULE, "the lock module is too old: " + old.group(), null);
    }
  }

  /** An answer for which is waited so long. If there is none, its connection is left. */
  CompletableFuture<Object> timed(CompletableFuture<Object> answer, long within) {
    return answer.copy().orTimeout(within, TimeUnit.NANOSECONDS).whenComplete((reply, error) -> {
      if (error instanceof TimeoutException && within >= SUSPICIOUS) {
        access.suspect();
      }
    });
  }

  /** Sends what gives a lock back until it is answered, or until then. It fails, too, where it may have been given back. */
  CompletableFuture<Object> insist(String name, Supplier<byte[][]> command, long until, int failures) {
    return timed(access.send(command.get()), Attempt.REPLY_WITHIN).exceptionallyCompose(failure -> {
      NativeLockException error = meaning(failure);
      boolean isPassing = Attempt.PASSING.contains(error.code()) || error.code().equals("MISCONF");
      if (!isPassing || System.nanoTime() - until >= 0) {
        warn(name + " is left to its lease, not given back", error);
        return CompletableFuture.failedFuture(error);
      }
      return Wire.after(Wire.pause(failures)).thenCompose(paused -> insist(name, command, until, failures + 1))
          .thenCompose(reply -> Hold.DONE.equals(reply) || error.isRefusal() ? CompletableFuture.completedFuture(reply)
              : CompletableFuture.failedFuture(error));
    });
  }

  /** One channel for this process; in a cluster one for each slot. */
  byte[] channel(byte[] key) {
    int slot = access.slot(key);
    return Wire.bytes(slot < 0 ? channel : channel + "{" + TAGS.computeIfAbsent(slot, absent ->
        Stream.iterate(0, word -> word + 1).map(String::valueOf)
            .filter(word -> access.slot(Wire.bytes(word)) == slot).findFirst().orElseThrow()) + "}");
  }

  /** Where this process hears that channel already, or null. */
  Listener listening(byte[] channel) {
    return listeners.values().stream().filter(listener -> listener.hears(channel)).findFirst().orElse(null);
  }

  /** Where this process hears of the waits for a key that this node serves. */
  synchronized Listener listener(byte[] key, Object node) {
    Listener listener = listeners.get(node);
    if (listener == null || listener.ended.isDone()) {
      listener = new Listener();
      listeners.put(node, listener);
      listener.open(this, key);
    }
    return listener;
  }

  void hear(byte[] message) {
    Wire.Told told = Wire.told(message);
    CompletableFuture<Wire.Told> heard = told == null ? null : waits.get(told.owner());
    if (heard != null) {
      heard.complete(told);
    } else if (told != null && told.token() > 0) {
      // Nobody waits for it any more.
      byte[][] release = Wire.command("LOCK.RELEASE", told.key(), told.owner(), "FENCE", told.token());
      insist("a late grant", () -> release, System.nanoTime() + told.lease(), 0);
    }
  }
}
