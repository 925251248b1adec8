package redisnativelock;

import java.time.Duration;
import java.util.concurrent.*;
import redisnativelock.spi.RedisAccess;

/** A lock that is held. It is renewed in the background, and may be given back by any thread. */
public final class Hold {
  /** How long a thread waits for what it gives back, which then goes on in the background. */
  private static final long RELEASE_WITHIN = 500 * Wire.MILLISECOND;
  static final Long DONE = 1L;

  final Attempt attempt;
  /** The thread that has entered, or null for a hold of no thread. */
  volatile Thread thread;
  private final Locks locks;
  private final long keptUntil;
  private final CompletableFuture<Void> lost = new CompletableFuture<>();
  private volatile long lease;
  private long validUntil;
  private boolean isOver;
  /** Why it is lost, if it is. */
  private volatile String why;
  private Future<?> timer = CompletableFuture.completedFuture(null);

  Hold(Attempt attempt) {
    this.attempt = attempt;
    locks = attempt.lock.locks;
    lease = attempt.lease;
    validUntil = attempt.validUntil;
    keptUntil = System.nanoTime() + attempt.lock.atLeast;
    schedule();
  }

  public String key() {
    return attempt.lock.getName();
  }

  /** The name under which the server knows this hold. */
  public String owner() {
    return attempt.owner;
  }

  /** The fencing token: hand it to what you write to, and let that refuse a smaller one than it has seen. */
  public long token() {
    return attempt.token;
  }

  /** How long the hold can be relied upon, if no renewal succeeds. */
  public synchronized Duration validFor() {
    return Duration.ofNanos(look() ? 0 : Math.max(0, left()));
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

  NativeLockException loss() {
    String reason = key() + " is lost: " + (why == null ? "it was released" : why);
    return new NativeLockException(NativeLockException.LOST, reason, null);
  }

  /** Renews it now, for its lease. */
  public void renew() {
    renew(Duration.ofNanos(lease));
  }

  /** Renews it now, for this lease, kept up from now on if it is renewed. {@link NativeLockException#LOST} if it is over. */
  public void renew(Duration newLease) {
    long nanos = Locks.checked(newLease);
    locks.join(attempt.next(() -> sendRenewal(nanos)), Attempt.REPLY_WITHIN);
  }

  private synchronized CompletableFuture<Object> sendRenewal(long newLease) {
    if (look()) {
      return CompletableFuture.failedFuture(loss());
    }
    long sent = System.nanoTime();
    long before = validUntil;
    // Until it is answered the shorter of the two leases is relied upon.
    validUntil = Math.min(validUntil, sent + Wire.reliedUpon(newLease));
    long within = Math.min(Attempt.REPLY_WITHIN, Math.max(left(), 100 * Wire.MILLISECOND) / 2);
    return attempt.send(attempt.renew(newLease), within)
        .handle((reply, failure) -> renewed(newLease, sent, before, reply, failure));
  }

  private synchronized Object renewed(long newLease, long sent, long before, Object reply, Throwable failure) {
    NativeLockException error = failure == null ? null : locks.meaning(failure);
    if (error != null && error.isRefusal()) {
      validUntil = before;
    } else if (!DONE.equals(reply)) {
      // It was not answered, or sent twice, and may come yet.
      attempt.unanswered = Math.min(newLease, attempt.unanswered);
    }
    if (failure == null && reply.equals(0L) && !isOver) {
      lose("the server does not know this hold any more");
    }
    if (look()) {
      throw loss();
    }
    if (error == null) {
      lease = newLease;
      validUntil = sent + Wire.reliedUpon(Math.min(newLease, attempt.unanswered));
    }
    schedule();
    if (error != null) {
      Locks.warn(key() + " is not renewed", error);
      throw error;
    }
    return reply;
  }

  private long left() {
    return validUntil - System.nanoTime();
  }

  /** Renews it when a third of the lease is over, and soon where less than that leaves is left. */
  private void schedule() {
    long left = left();
    wakeIn(attempt.isRenewed ? Math.max(left - lease / 3 * 2, Math.min(lease / 30, left / 4)) : left);
  }

  private void wakeIn(long nanos) {
    timer.cancel(false);
    CompletableFuture<Void> next = Wire.after(nanos);
    next.thenRunAsync(this::tick, RedisAccess.THREADS);
    timer = next;
  }

  private void tick() {
    synchronized (this) {
      if (thread != null && !thread.isAlive() && !isOver) {
        lose("its thread has ended");
      }
      if (look()) {
        return;
      }
      wakeIn(left());
    }
    if (attempt.isRenewed) {
      attempt.next(() -> sendRenewal(lease));
    }
  }

  /** Returns whether it is over, and tells so if that is new. */
  private boolean look() {
    if (!isOver && left() <= 0) {
      lose("its lease is over");
    }
    return isOver;
  }

  private void lose(String reason) {
    isOver = true;
    timer.cancel(false);
    locks.waits.remove(owner());
    why = reason;
    Locks.warn(loss().getMessage(), null);
    RedisAccess.THREADS.execute(() -> {
      // A renewal that got no answer may come late. What is not renewed ends by itself.
      if (attempt.isRenewed) {
        giveBack(keptUntil);
      }
      lost.complete(null);
    });
  }

  private CompletableFuture<Object> giveBack(long notBefore) {
    return attempt.insist(() -> {
      long rest = notBefore - System.nanoTime();
      return rest > 0 ? attempt.renew(rest) : attempt.release();
    }, lease, notBefore - System.nanoTime() > 0);
  }

  /**
   * Gives the lock back. What fails is logged, tried again in the background, and left to the lease: it is never thrown.
   *
   * @return whether this is known to have ended the hold
   */
  public boolean release() {
    return release(Duration.ofNanos(keptUntil - System.nanoTime()));
  }

  /** The same, but the lock stays taken for so long from now on, if that is positive. */
  public boolean release(Duration keep) {
    long notBefore = System.nanoTime() + keep.toNanos();
    synchronized (this) {
      if (look()) {
        return false;
      }
      isOver = true;
      timer.cancel(false);
    }
    try {
      boolean isEnded = locks.join(giveBack(notBefore), RELEASE_WITHIN) instanceof Long reply && reply > 0;
      if (!isEnded) {
        lose("it was over before its work");
      }
      return isEnded;
    } catch (NativeLockException notKnown) {
      Locks.warn(key() + " is not known to be given back", notKnown);
      return false;
    }
  }
}
