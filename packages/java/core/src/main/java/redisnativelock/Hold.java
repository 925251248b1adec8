package redisnativelock;

import java.time.Duration;
import java.util.concurrent.*;
import java.util.function.Supplier;
import redisnativelock.spi.RedisAccess;

/** A lock that is held. It is renewed in the background, and may be given back by any thread. */
public final class Hold {
  /** When a short first lease is claimed. Work that is done sooner spares that. */
  private static final long CLAIM_AFTER = 20 * Wire.MILLISECOND;
  private static final long NEVER = Long.MAX_VALUE / 4;

  private final Locks locks;
  private final Attempt attempt;
  final Request request;
  /** How often its thread has entered. */
  int depth;
  private final long token;
  /** The thread whose hold this is, or null. */
  private final Thread thread;
  private final long grantedAt = System.nanoTime();
  private final CompletableFuture<Void> lost = new CompletableFuture<>();
  private volatile long lease;
  /** The shortest lease of a renewal that was not answered. */
  private long unanswered = Long.MAX_VALUE;
  private long validUntil;
  private long renewAt;
  private boolean isClaimed;
  private int failures;
  private boolean isOver;
  /** Why it is lost, if it is. */
  private volatile String why;
  private Future<?> timer = CompletableFuture.completedFuture(null);
  /** What is sent for it goes one after the other: a renewal that is late undoes nothing. */
  private CompletableFuture<?> last = CompletableFuture.completedFuture(null);

  Hold(Locks locks, Attempt attempt, Attempt.Grant grant, Thread thread) {
    this.locks = locks;
    this.attempt = attempt;
    this.thread = thread;
    request = attempt.request;
    token = grant.token();
    lease = request.lease();
    validUntil = grant.since() + Wire.reliedUpon(grant.lease());
    isClaimed = grant.lease() >= lease;
    renewIn(isClaimed ? grant.since() - grantedAt + lease / 3 : Math.min(CLAIM_AFTER, (validUntil - grantedAt) / 4));
  }

  public String key() {
    return request.name();
  }

  /** The name under which the server knows this hold. */
  public String owner() {
    return request.owner();
  }

  /** The fencing token: hand it to what you write to, and let that refuse a smaller one than it has seen. */
  public long token() {
    return token;
  }

  /** How long the hold can be relied upon, if no renewal succeeds. */
  public synchronized Duration validFor() {
    return Duration.ofNanos(look() ? 0 : Math.max(0, validUntil - System.nanoTime()));
  }

  public synchronized boolean isLost() {
    look();
    return why != null;
  }

  synchronized boolean isHeld() {
    return !look();
  }

  /** Is completed when the hold is lost, before its lease ends, and never if it is released in time. */
  public CompletableFuture<Void> lost() {
    return lost.copy();
  }

  LockLostException loss() {
    return new LockLostException("the lock " + key() + " is lost: " + (why == null ? "it was released" : why), null);
  }

  /** Renews it now, for its lease. */
  public void renew() {
    renew(Duration.ofNanos(lease));
  }

  /**
   * Renews it now, for this lease, which is kept up from now on if this hold is renewed.
   *
   * @throws LockLostException if it is over
   */
  public void renew(Duration newLease) {
    long nanos = Locks.checked(newLease);
    try {
      Background.join(renew(nanos), Attempt.REPLY_WITHIN);
    } catch (ExecutionException | TimeoutException failure) {
      Throwable error = locks.meaning(failure);
      throw error instanceof LockLostException ? loss() : NativeLockException.of(key(), error);
    }
  }

  private CompletableFuture<Void> renew(long newLease) {
    return next(() -> sendRenewal(newLease));
  }

  private synchronized <T> CompletableFuture<T> next(Supplier<CompletableFuture<T>> work) {
    CompletableFuture<T> done = last.handle((before, error) -> null).thenCompose(before -> work.get());
    last = done;
    return done;
  }

  private synchronized CompletableFuture<Void> sendRenewal(long newLease) {
    if (look()) {
      return CompletableFuture.failedFuture(loss());
    }
    long sent = System.nanoTime();
    // Until it is answered the shorter of the two leases is relied upon.
    validUntil = Math.min(validUntil, sent + Wire.reliedUpon(newLease));
    long within = Math.min(Attempt.REPLY_WITHIN, Math.max(validUntil - sent, 100 * Wire.MILLISECOND) / 2);
    return locks.send(request.renew(token, newLease), within)
        .handle((reply, failure) -> renewed(newLease, sent, reply, failure));
  }

  private synchronized Void renewed(long newLease, long sent, Object reply, Throwable failure) {
    if (failure == null && !Attempt.DONE.equals(reply) && !isOver) {
      lose("the server does not know this hold any more");
    }
    if (look()) {
      throw loss();
    }
    // One that is not answered may come yet, and leave its lease.
    long left = Math.min(newLease, unanswered);
    if (failure == null) {
      lease = newLease;
      isClaimed = true;
      failures = 0;
      validUntil = sent + Wire.reliedUpon(left);
      renewIn(sent - System.nanoTime() + left / 3);
      return null;
    }
    Throwable error = locks.meaning(failure);
    Background.warn(key() + " is not renewed", error);
    if (!Attempt.isRefusal(error)) {
      lease = newLease;
      unanswered = left;
    }
    renewIn(Math.min(Background.pause(failures++), (validUntil - System.nanoTime()) / 8));
    throw new CompletionException(error);
  }

  /** What is not renewed is claimed all the same. */
  private void renewIn(long nanos) {
    renewAt = System.nanoTime() + (isClaimed && !request.isRenewed() ? NEVER : nanos);
    schedule();
  }

  private void schedule() {
    timer.cancel(false);
    long at = renewAt - validUntil > 0 ? validUntil : renewAt;
    timer = Background.later(at - System.nanoTime(), this::tick);
  }

  private synchronized void tick() {
    if (look()) {
      return;
    }
    if (thread != null && !thread.isAlive()) {
      lose("its thread has ended");
      return;
    }
    if (renewAt - System.nanoTime() <= 0) {
      // Not again until that is over.
      renewAt += NEVER;
      renew(lease);
    }
    schedule();
  }

  /** Returns whether it is over, and tells so if that is new. */
  private boolean look() {
    if (!isOver && validUntil - System.nanoTime() <= 0) {
      lose("its lease is over");
    }
    return isOver;
  }

  private void lose(String reason) {
    tell(reason);
    // A renewal that got no answer may come late.
    end(() -> request.release(token));
  }

  private void tell(String reason) {
    why = reason;
    Background.warn(loss().getMessage(), null);
    RedisAccess.THREADS.execute(() -> lost.complete(null));
  }

  private CompletableFuture<Object> end(Supplier<byte[][]> command) {
    isOver = true;
    timer.cancel(false);
    attempt.forget();
    long until = System.nanoTime() + lease;
    return next(() -> locks.insist(key(), command, until, 0));
  }

  /**
   * Gives the lock back. What fails is logged, tried again in the background, and left to the lease: it is never thrown.
   *
   * @return whether this is known to have ended the hold
   */
  public boolean release() {
    return release(Duration.ofNanos(request.atLeast() - (System.nanoTime() - grantedAt)));
  }

  /** The same, but the lock stays taken for so long from now on, if that is positive. */
  public boolean release(Duration keep) {
    CompletableFuture<Object> reply;
    synchronized (this) {
      if (look()) {
        return false;
      }
      long keptUntil = System.nanoTime() + keep.toNanos();
      reply = end(() -> {
        long rest = keptUntil - System.nanoTime();
        return rest > 0 ? request.renew(token, rest) : request.release(token);
      });
    }
    try {
      boolean isEnded = Attempt.DONE.equals(Background.join(reply, Attempt.RELEASE_WITHIN));
      if (!isEnded) {
        tell("it was over before its work");
      }
      return isEnded;
    } catch (ExecutionException isLogged) {
      return false;
    } catch (TimeoutException goesOn) {
      Background.warn(key() + " is not given back yet", goesOn);
      return false;
    }
  }
}
