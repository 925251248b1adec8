package redisnativelock;

import java.util.*;
import java.util.concurrent.*;
import java.util.function.Supplier;
import redisnativelock.Wire.Told;
import redisnativelock.spi.RedisAccess;

/** One attempt to take a lock, in the thread that asks for it, under a name that never asked before. */
final class Attempt {
  static final long FOREVER = Long.MAX_VALUE;
  static final long REPLY_WITHIN = 5_000 * Wire.MILLISECOND;
  /** A place is asked for so long, again and again. */
  private static final long PLACE_MAX = 300_000 * Wire.MILLISECOND;
  /** How often a place is asked for again while nothing is heard: a message may be lost. */
  private static final long ASK_AGAIN = 10_000 * Wire.MILLISECOND;
  private static final long BLOCK_MAX = 86_400_000 * Wire.MILLISECOND;
  /** After these the same request may succeed. */
  static final Set<String> PASSING = Set.of(NativeLockException.UNANSWERED, NativeLockException.NOT_SAFE,
      "UNBLOCKED", "MOVED", "ASK", "READONLY", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN");

  final NativeLock lock;
  final String owner = UUID.randomUUID().toString();
  final long lease;
  final boolean isRenewed;
  /** The grant: its token, which is 0 before, and until when it is relied upon. */
  long token;
  long validUntil;
  /** The shortest lease of a renewal that was not answered, or sent twice: it may come yet, if only again. */
  long unanswered = Long.MAX_VALUE;
  private final Locks locks;
  private final byte[] channel;
  private final long wait;
  private final boolean isInterruptible;
  private final long began = System.nanoTime();
  /** Whether the server may have a place or a hold for it. */
  private boolean isInDoubt;
  private Listener listener;
  /** The answer of what was sent last. One is sent after the other, so nothing that is late undoes anything. */
  private CompletableFuture<Object> last = CompletableFuture.completedFuture(null);
  /** Ends when no acquire or renewal of this may be carried out any more, though it was given up long before. */
  private CompletableFuture<Object> settled = last;
  /** The same of acquires alone. */
  private CompletableFuture<Object> acquired = last;

  Attempt(NativeLock lock, long lease, boolean isRenewed, long wait, boolean isInterruptible) {
    this.lock = lock;
    this.locks = lock.locks;
    this.channel = locks.channel(lock.key);
    this.lease = lease;
    this.isRenewed = isRenewed;
    this.wait = Math.max(wait, 0);
    this.isInterruptible = isInterruptible;
  }

  /** With HOLD 1 it does no harm to send it again. */
  private byte[][] acquire(Object... how) {
    List<Object> words = new ArrayList<>(
        List.of("LOCK.ACQUIRE", lock.key, owner, "LEASE", Wire.milliseconds(lease), "HOLD", 1));
    words.addAll(List.of(how));
    if (lock.limit > 1) {
      words.addAll(lock.limit == NativeLock.SHARED ? List.of("SHARED") : List.of("LIMIT", lock.limit));
    }
    return Wire.command(words.toArray());
  }

  byte[][] renew(long nanos) {
    return Wire.command("LOCK.RENEW", lock.key, owner, "LEASE", Wire.milliseconds(nanos), "FENCE", token);
  }

  byte[][] release() {
    return Wire.command("LOCK.RELEASE", lock.key, owner, "FENCE", token);
  }

  /** Returns whether it took the lock in time. If not, it leaves no place and no hold behind. */
  boolean take() throws InterruptedException {
    try {
      loop();
      return token > 0;
    } finally {
      if (token == 0) {
        locks.waits.remove(owner);
      }
      acquired = settled;
      if (token == 0 && isInDoubt) {
        long within = listener == null ? lease : Math.max(lease, PLACE_MAX);
        insist(() -> Wire.command("LOCK.RELEASE", lock.key, owner), within, true);
      }
    }
  }

  private void loop() throws InterruptedException {
    for (int failures = 0; ; failures++) {
      try {
        // Who listens already asks for a place at once. By this the client library learns where the key is now.
        token = wait > 0 && locks.listening(channel) != null ? 0 : ask(acquire());
        if (token == 0 && wait > 0) {
          queue();
        }
        // A reply may come so late that its lease is over.
        token = validUntil - System.nanoTime() > 0 ? token : 0;
        if (token > 0 || left() <= 0) {
          return;
        }
      } catch (NativeLockException failure) {
        // What there is after SUPERSEDED is another's of this name.
        isInDoubt &= !failure.code().equals(NativeLockException.SUPERSEDED);
        if (wait > 0 && left() <= 0 && failure.code().equals(NativeLockException.UNANSWERED)) {
          return;
        } else if (left() <= 0 || !PASSING.contains(failure.code())) {
          throw failure;
        }
        Locks.warn(lock.getName() + " is asked for again", failure);
        if (listener != null) {
          // It may be at a server that is no primary any more.
          listener.end(failure);
        }
        await(Wire.after(Math.min(Wire.pause(failures), left())), FOREVER);
      }
    }
  }

  private long left() {
    return wait == FOREVER ? FOREVER : began + wait - System.nanoTime();
  }

  private long within() {
    return wait <= 0 ? REPLY_WITHIN : Math.min(REPLY_WITHIN, Math.max(left(), 50 * Wire.MILLISECOND));
  }

  private <T> T await(CompletableFuture<T> future, long nanos) throws InterruptedException {
    if (isInterruptible) {
      CountDownLatch ended = new CountDownLatch(1);
      future.whenComplete((reply, error) -> ended.countDown());
      ended.await(nanos, TimeUnit.NANOSECONDS);
    }
    return locks.join(future, isInterruptible ? 0 : nanos);
  }

  private long ask(byte[][] command) throws InterruptedException {
    return ask(() -> send(command, REPLY_WITHIN), within());
  }

  /** Sends what may come late. Nothing is given back before it has ended. */
  CompletableFuture<Object> send(byte[][] command, long within) {
    CompletableFuture<Object> answer = locks.access.send(command);
    settled = settled.thenCombine(answer.exceptionally(error -> null), (before, reply) -> null);
    return locks.timed(answer, within);
  }

  /** What it is answered with, and 0 for null. */
  private long ask(Supplier<CompletableFuture<Object>> send, long within) throws InterruptedException {
    boolean wasInDoubt = isInDoubt;
    isInDoubt = true;
    validUntil = System.nanoTime() + Wire.reliedUpon(lease);
    try {
      Long reply = (Long) await(next(send), within);
      isInDoubt = wasInDoubt || reply != null;
      return reply == null ? 0 : reply;
    } catch (NativeLockException error) {
      isInDoubt = wasInDoubt || !error.isRefusal();
      throw error;
    }
  }

  /** Waits by a place in the queue. There is no token after it if that is to be asked for again. */
  private void queue() throws InterruptedException {
    CompletableFuture<Told> heard = new CompletableFuture<>();
    locks.waits.put(owner, heard);
    try {
      listener = locks.listening(channel);
      if (listener == null) {
        listener = locks.listener(lock.key, await(locks.access.node(lock.key), within()));
      }
      await(listener.subscribe(channel), within());
      token = ask(acquire("QUEUE", Wire.milliseconds(Math.min(PLACE_MAX, left())), channel));
    } catch (NativeLockException error) {
      if (error.code().equals("NOPERM")) {
        // It may not subscribe, or not publish to itself.
        block();
        return;
      }
      throw error;
    }
    if (token > 0) {
      return;
    }
    // Nothing is told where its time is over, or the message was lost.
    long patience = Math.min(ASK_AGAIN, left());
    Told told = (Told) await(CompletableFuture.anyOf(heard, listener.ended)
        .completeOnTimeout(Wire.GONE, patience, TimeUnit.NANOSECONDS), FOREVER);
    if (told.error() != null) {
      throw NativeLockException.replied(told.error(), null);
    }
    if (told.token() > 0) {
      // The owner is new, so the grant came after its first request.
      validUntil = began + Wire.reliedUpon(Math.min(told.lease(), lease));
      claim(told.token(), told.lease());
    } else {
      listener.doubt(channel);
    }
  }

  /** Makes sure of a grant after a wait. Work that has enough of its first lease left begins at once. */
  private void claim(long granted, long first) throws InterruptedException {
    token = granted;
    // In a cluster other nodes of a shard pass on what their primary may have taken back: there it claims first.
    boolean isSure = isRenewed && locks.access.slot(lock.key) < 0;
    if (!isSure || validUntil - System.nanoTime() < first / 4) {
      byte[][] renewal = renew(lease);
      long before = unanswered;
      unanswered = Math.min(lease, unanswered);
      token = 0;
      long reply = ask(renewal);
      token = reply > 0 ? granted : 0;
      unanswered = reply == RedisAccess.RENEWED_TWICE ? unanswered : before;
    }
  }

  /** Waits by blocking a connection of its own, for users who may not subscribe. */
  private void block() throws InterruptedException {
    CompletableFuture<Object> ended = new CompletableFuture<>();
    CompletableFuture<RedisAccess.Link> opening = locks.access.open(lock.key, message -> {}, ended::completeExceptionally);
    try {
      RedisAccess.Link link = await(opening, within());
      long left = Math.min(BLOCK_MAX, left());
      byte[][] command = acquire("BLOCK", Wire.milliseconds(left));
      long granted = ask(() -> CompletableFuture.anyOf(link.send(command), ended), left + REPLY_WITHIN);
      if (granted > 0) {
        claim(granted, lease);
      }
    } finally {
      opening.thenAccept(RedisAccess.Link::close);
      // Its request may be on its way yet. What gives it back goes over another connection, and is not to overtake it.
      settled = token > 0 ? settled : settled.thenCombine(Wire.after(Locks.SUSPICIOUS), (before, over) -> null);
    }
  }

  /** Sends after all that was sent before is answered. */
  synchronized CompletableFuture<Object> next(Supplier<CompletableFuture<Object>> send) {
    last = last.handle((reply, error) -> null).thenCompose(before -> send.get());
    return last;
  }

  /** Sends what gives the lock back, when no acquire may take it anew; if it is the last word, after all renewals, too. */
  CompletableFuture<Object> insist(Supplier<byte[][]> command, long within, boolean isLast) {
    locks.waits.remove(owner);
    long until = System.nanoTime() + within;
    return next(() -> (isLast ? settled : acquired)
        .thenCompose(done -> locks.insist(lock.getName(), command, until, 0)));
  }
}
