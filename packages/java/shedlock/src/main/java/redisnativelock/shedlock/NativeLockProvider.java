package redisnativelock.shedlock;

import java.time.Duration;
import java.util.*;
import net.javacrumbs.shedlock.core.*;
import redisnativelock.*;

/**
 * Native locks for ShedLock. A task that ends before {@code lockAtLeastFor} keeps its lock for the rest of that. With the
 * prefix {@code job-lock:default:} the keys are those of ShedLock's own providers for Redis.
 */
public final class NativeLockProvider implements ExtensibleLockProvider {
  private final Locks locks;

  public NativeLockProvider(Locks locks) {
    this.locks = locks;
  }

  @Override
  public Optional<SimpleLock> lock(LockConfiguration configuration) {
    try {
      return locks.lock(configuration.getName()).acquire(Duration.ZERO, atMost(configuration))
          .map(hold -> new HeldLock(configuration, hold));
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
    } catch (NativeLockException error) {
      // A provider that sets a string has it.
      if (!error.code().equals("WRONGTYPE")) {
        throw error;
      }
    }
    return Optional.empty();
  }

  private static Duration atMost(LockConfiguration configuration) {
    return Collections.max(List.of(configuration.getLockAtMostFor(), Duration.ofMillis(1)));
  }

  private static final class HeldLock extends AbstractSimpleLock {
    private final Hold hold;

    HeldLock(LockConfiguration configuration, Hold hold) {
      super(configuration);
      this.hold = hold;
    }

    @Override
    protected void doUnlock() {
      hold.release(Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil()));
    }

    @Override
    protected Optional<SimpleLock> doExtend(LockConfiguration configuration) {
      try {
        hold.renew(atMost(configuration));
        return Optional.of(new HeldLock(configuration, hold));
      } catch (NativeLockException error) {
        if (!error.code().equals(NativeLockException.LOST)) {
          throw error;
        }
        return Optional.empty();
      }
    }
  }
}
