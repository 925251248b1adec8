package redisnativelock;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.*;

/**
 * A lock on the server, with the names of Redisson's {@code RLock} beside those of {@link Lock}.
 *
 * <p>A thread that holds it may take it again: that is counted here, and nothing is sent. It is renewed until {@code
 * unlock()}, unless a lease was given, as with {@code RLock}. Where its thread has ended without {@code unlock()}, it is
 * given back. An object is no more than a name, and safe for all threads.
 */
public final class NativeLock implements Lock {
  /** Work under a lock. */
  @FunctionalInterface
  public interface Work<T, E extends Exception> {
    T run(Hold hold) throws E;
  }

  static final int SHARED = Integer.MAX_VALUE;

  final Locks locks;
  final byte[] key;
  /** 1 for a lock that is held alone, {@link #SHARED} for a shared one. */
  final int limit;
  final long atLeast;
  private final String name;
  private final Duration lease;

  NativeLock(Locks locks, byte[] key, int limit, Duration lease, long atLeast) {
    this.locks = locks;
    this.key = key;
    this.limit = limit;
    this.lease = lease;
    this.atLeast = atLeast;
    name = new String(key, StandardCharsets.UTF_8);
  }

  /** The same lock, held together with others that hold it shared. */
  public NativeLock shared() {
    return new NativeLock(locks, key, SHARED, lease, atLeast);
  }

  /** The same lock, held by so many at most. */
  public NativeLock limit(int holders) {
    if (holders < 1 || holders == SHARED) {
      throw new IllegalArgumentException("a limit is 1 to 2^31 - 2");
    }
    return new NativeLock(locks, key, holders, lease, atLeast);
  }

  /** The same lock with another lease, which is renewed. */
  public NativeLock lease(Duration lease) {
    Locks.checked(lease);
    return new NativeLock(locks, key, limit, lease, atLeast);
  }

  /** The same lock, which stays taken for so long after its grant, however short its work. */
  public NativeLock atLeast(Duration atLeast) {
    return new NativeLock(locks, key, limit, lease, atLeast.toNanos());
  }

  /** Returns null where the lock did not come free in time. */
  private Hold acquire(long wait, Duration ownLease, boolean isInterruptible) throws InterruptedException {
    long nanos = Locks.checked(ownLease == null ? lease : ownLease);
    locks.checkVersion(key);
    Attempt attempt = new Attempt(this, nanos, ownLease == null, wait, isInterruptible);
    return attempt.take() ? new Hold(attempt) : null;
  }

  private Deque<Hold> entered() {
    return locks.entered.get().getOrDefault(ByteBuffer.wrap(key), new ArrayDeque<>());
  }

  /** This thread enters, and waits for that if need be. Returns null where the lock did not come free in time. */
  private Hold enter(long wait, Duration ownLease, boolean isInterruptible) throws InterruptedException {
    if (isInterruptible && Thread.interrupted()) {
      throw new InterruptedException();
    }
    Deque<Hold> entered = entered();
    Hold hold = entered.peek();
    if (hold != null && hold.attempt.isRenewed && hold.isLost()) {
      throw hold.loss();
    } else if (hold == null || !hold.isHeld()) {
      // Who has lost one has still to leave that, too.
      hold = acquire(wait, ownLease, isInterruptible);
      if (hold == null) {
        return null;
      }
      hold.thread = Thread.currentThread();
      locks.entered.get().put(ByteBuffer.wrap(key), entered);
    } else if (limit < hold.attempt.lock.limit) {
      throw new IllegalMonitorStateException("this thread shares " + name + ": it would wait for itself");
    }
    entered.push(hold);
    return hold;
  }

  private Hold enterUninterruptibly(long wait, Duration ownLease) {
    try {
      return enter(wait, ownLease, false);
    } catch (InterruptedException never) {
      throw new AssertionError(never);
    }
  }

  /** As {@code RLock} has it: a lease of -1 is none. */
  private static Duration own(long lease, TimeUnit unit) {
    return lease == -1 ? null : Duration.of(lease, unit.toChronoUnit());
  }

  @Override
  public void lock() {
    enterUninterruptibly(Attempt.FOREVER, null);
  }

  /** Locks for so long: it is not renewed. */
  public void lock(long lease, TimeUnit unit) {
    enterUninterruptibly(Attempt.FOREVER, own(lease, unit));
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    enter(Attempt.FOREVER, null, true);
  }

  /** Locks for so long: it is not renewed. */
  public void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
    enter(Attempt.FOREVER, own(lease, unit), true);
  }

  /** Never waits for others. */
  @Override
  public boolean tryLock() {
    return enterUninterruptibly(0, null) != null;
  }

  @Override
  public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
    return enter(unit.toNanos(wait), null, true) != null;
  }

  /** Locks for {@code lease}, and does not renew it; with a lease of -1 it does. */
  public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
    return enter(unit.toNanos(wait), own(lease, unit), true) != null;
  }

  /** {@link #lock()} that returns the fencing token. */
  public long lockAndGetToken() {
    return enterUninterruptibly(Attempt.FOREVER, null).token();
  }

  /**
   * Leaves, and gives the lock back with the outermost. A hold that was lost meanwhile is no error here, so that it does
   * not take the place of the work's: ask {@link #hold()} whether it was lost.
   *
   * @throws IllegalMonitorStateException if this thread has not locked it
   */
  @Override
  public void unlock() {
    Hold hold = hold();
    Deque<Hold> entered = entered();
    entered.pop();
    if (entered.isEmpty()) {
      locks.entered.get().remove(ByteBuffer.wrap(key));
    }
    if (!entered.contains(hold)) {
      hold.release();
    }
  }

  /**
   * This thread's hold: its token, and whether it is lost.
   *
   * @throws IllegalMonitorStateException if this thread has not locked it
   */
  public Hold hold() {
    Hold hold = entered().peek();
    if (hold == null) {
      throw new IllegalMonitorStateException("this thread does not hold " + name);
    }
    return hold;
  }

  /** A hold that is no thread's, and is given back by {@link Hold#release()}. Each call takes another one. */
  public Hold acquire() throws InterruptedException {
    return acquire(Attempt.FOREVER, null, true);
  }

  /** The same, if the lock comes free in time. */
  public Optional<Hold> acquire(Duration wait) throws InterruptedException {
    return Optional.ofNullable(acquire(wait.toNanos(), null, true));
  }

  /** The same for a lease that is not renewed. */
  public Optional<Hold> acquire(Duration wait, Duration ownLease) throws InterruptedException {
    return Optional.ofNullable(acquire(wait.toNanos(), ownLease, true));
  }

  /**
   * Runs work under the lock, for which it waits. The error is {@link NativeLockException#LOST} if the work succeeded, but
   * the lock was lost meanwhile.
   */
  public <T, E extends Exception> T call(Work<T, E> work) throws E, InterruptedException {
    return run(enter(Attempt.FOREVER, null, true), work);
  }

  /** Runs work under the lock if that comes free in time, and returns whether it did. */
  public <E extends Exception> boolean tryCall(Duration wait, Work<?, E> work) throws E, InterruptedException {
    Hold hold = enter(wait.toNanos(), null, true);
    if (hold != null) {
      run(hold, work);
    }
    return hold != null;
  }

  private <T, E extends Exception> T run(Hold hold, Work<T, E> work) throws E {
    T result;
    try {
      result = work.run(hold);
    } finally {
      unlock();
    }
    if (hold.isLost()) {
      throw hold.loss();
    }
    return result;
  }

  /** Whether this thread holds it, as far as this process knows. */
  public boolean isHeldByCurrentThread() {
    return getHoldCount() > 0;
  }

  /** How often this thread has entered. */
  public int getHoldCount() {
    Hold hold = entered().peek();
    return hold == null || !hold.isHeld() ? 0 : Collections.frequency(entered(), hold);
  }

  private long ask(String command) {
    return (Long) locks.join(locks.access.send(Wire.command(command, key)), Attempt.REPLY_WITHIN);
  }

  /** Whether anybody holds it. */
  public boolean isLocked() {
    return ask("EXISTS") == 1;
  }

  /** How many milliseconds are left of its lease, whoever holds it; -2 if nobody does. */
  public long remainTimeToLive() {
    return ask("PTTL");
  }

  /** Takes it from whoever holds it, who is told at the next renewal, and passes it on. Returns whether it was held. */
  public boolean forceUnlock() {
    return ask("LOCK.BREAK") == 1;
  }

  public String getName() {
    return name;
  }

  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException("a lock of the server has no conditions");
  }
}
