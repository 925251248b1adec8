package redisnativelock.spring;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import org.springframework.integration.support.locks.*;
import redisnativelock.*;

/**
 * Native locks for Spring Integration. They are renewed, unless a time to live is given. As Spring's own do, {@code
 * unlock()} throws a {@link ConcurrentModificationException} if the lock was lost before.
 */
public final class NativeLockRegistry
    implements RenewableLockRegistry<DistributedLock>, ExpirableLockRegistry<DistributedLock> {
  private final Locks locks;

  public NativeLockRegistry(Locks locks) {
    this.locks = locks;
  }

  @Override
  public DistributedLock obtain(Object lockKey) {
    return new RegistryLock(locks, lockKey.toString());
  }

  /** Nothing is kept of locks that are not used. */
  @Override
  public void expireUnusedOlderThan(long age) {}

  @Override
  public void renewLock(Object lockKey) {
    new RegistryLock(locks, lockKey.toString()).hold().renew();
  }

  @Override
  public void renewLock(Object lockKey, Duration ttl) {
    new RegistryLock(locks, lockKey.toString()).hold().renew(ttl);
  }

  /** Equal to another one of the same registry and name. */
  private record RegistryLock(Locks locks, String key) implements DistributedLock {
    private NativeLock named() {
      return locks.lock(key);
    }

    Hold hold() {
      try {
        return named().hold();
      } catch (IllegalMonitorStateException notHeld) {
        throw new IllegalStateException("You do not own lock at " + key, notHeld);
      }
    }

    @Override
    public void lock() {
      named().lock();
    }

    @Override
    public void lock(Duration ttl) {
      named().lock(ttl.toNanos(), TimeUnit.NANOSECONDS);
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
      named().lockInterruptibly();
    }

    @Override
    public boolean tryLock() {
      return named().tryLock();
    }

    @Override
    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
      return named().tryLock(wait, unit);
    }

    @Override
    public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
      return named().tryLock(wait.toNanos(), ttl.toNanos(), TimeUnit.NANOSECONDS);
    }

    @Override
    public void unlock() {
      Hold hold = hold();
      named().unlock();
      if (hold.isLost()) {
        throw new ConcurrentModificationException("Lock was released in the store due to expiration: " + key);
      }
    }

    @Override
    public Condition newCondition() {
      return named().newCondition();
    }
  }
}
