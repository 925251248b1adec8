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
  final Request request;
  /** How often its thread has entered. */
  int depth;
  private final long token;
  /** The thread whose hold this is, or null. */
  private final Thread thread;
  private final long grantedAt = System.nanoTime();
  private final CompletableFuture<Void> lost = new CompletableFuture<>();
  private volatile long lease;
  private long validUntil;
  private long renewAt;
  private int failures;
  private boolean isOver;
  private boolean isRenewing;
  /** Why it is lost, if it is. */
  private volatile String why;
  private Future<?> timer = CompletableFuture.completedFuture(null);
  /** What is sent for it goes one after the other: a renewal that is late undoes nothing. */
  private CompletableFuture<?> last = CompletableFuture.completedFuture(null);

  Hold(Locks locks, Request request, Attempt.Grant grant, Thread thread) {
    this.locks = locks;
    this.request = request;
    this.thread = thread;
    token = grant.token();
    lease = request.lease();
    validUntil = grant.since() + Wire.reliedUpon(grant.lease());
    boolean isClaimed = grant.lease() >= lease;
    renewAt = isClaimed ? nextRenewal(grant.since()) : grantedAt + Math.min(CLAIM_AFTER, (validUntil - grantedAt) / 4);
    schedule();
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

  private synchronized CompletableFuture<Void> renew(long newLease) {
    CompletableFuture<Void> renewed = last.handle((done, error) -> null).thenCompose(done -> sendRenewal(newLease));
    last = renewed;
    return renewed;
  }

  private synchronized CompletableFuture<Void> sendRenewal(long newLease) {
    if (look()) {
      return CompletableFuture.failedFuture(loss());
    }
    long sent = System.nanoTime();
    lease = newLease;
    // Until it is answered the shorter of the two leases is relied upon.
    validUntil = Math.min(validUntil, sent + Wire.reliedUpon(newLease));
    long within = Math.min(Attempt.REPLY_WITHIN, Math.max(validUntil - sent, 100 * Wire.MILLISECOND) / 2);
    return locks.send(request.renew(token, newLease), within).thenAccept(reply -> renewed(reply, sent));
  }

  private synchronized void renewed(Object reply, long sent) {
    if (!Attempt.DONE.equals(reply) && !isOver) {
      lose("the server does not know this hold any more");
    }
    if (look()) {
      throw loss();
    }
    validUntil = sent + Wire.reliedUpon(lease);
    renewAt = nextRenewal(sent);
    failures = 0;
    schedule();
  }

  private long nextRenewal(long since) {
    return since + (request.isRenewed() ? lease / 3 : NEVER);
  }

  private void schedule() {
    timer.cancel(false);
    long at = isRenewing || renewAt - validUntil > 0 ? validUntil : renewAt;
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
    if (!isRenewing && renewAt - System.nanoTime() <= 0) {
      isRenewing = true;
      renew(lease).whenComplete((done, error) -> afterRenewal(error));
    }
    schedule();
  }

  private synchronized void afterRenewal(Throwable error) {
    isRenewing = false;
    if (!isOver) {
      if (error != null) {
        Background.warn(key() + " is not renewed", locks.meaning(error));
        long now = System.nanoTime();
        renewAt = now + Math.min(Background.pause(failures++), (validUntil - now) / 8);
      }
      schedule();
    }
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
    locks.waits.remove(request.owner());
    long until = System.nanoTime() + lease;
    return last.handle((done, error) -> null).thenCompose(done -> locks.insist(key(), command, until, 0));
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
