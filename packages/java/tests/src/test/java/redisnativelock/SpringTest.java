package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;
import org.springframework.integration.support.locks.DistributedLock;
import redisnativelock.spring.NativeLockRegistry;

/** The cases of Spring Integration's own tests of its registry on Redis, but for those that look at its cache. */
class SpringTest extends WithServer {
  private final NativeLockRegistry registry = registry(30_000, "");

  private NativeLockRegistry registry(long leaseMs, String prefix) {
    return new NativeLockRegistry(Locks.create(Library.LETTUCE.access(server.port), Duration.ofMillis(leaseMs), prefix));
  }

  @Test
  void aLockIsTakenAndGivenBackAgainAndAgain() throws Exception {
    for (int round = 0; round < 10; round++) {
      Lock lock = registry.obtain("foo");
      lock.lock();
      Lock again = registry.obtain("foo");
      assertEquals(lock, again);
      again.lockInterruptibly();
      Lock other = registry.obtain("bar");
      assertNotEquals(lock, other);
      assertTrue(other.tryLock(1, TimeUnit.SECONDS));
      other.unlock();
      again.unlock();
      assertFalse(server.isFree("foo"));
      lock.unlock();
      assertTrue(server.isFree("foo"));
    }
    registry.expireUnusedOlderThan(-1000);
  }

  @Test
  void aTimeToLiveOfItsOwn() throws Exception {
    DistributedLock lock = registry(100, "").obtain("foo");
    lock.lock(Duration.ofSeconds(5));
    Thread.sleep(200);
    assertFalse(server.isFree("foo"));
    lock.unlock();
    assertTrue(lock.tryLock(Duration.ofMillis(100), Duration.ofSeconds(5)));
    Thread.sleep(200);
    assertFalse(server.isFree("foo"));
    lock.unlock();
  }

  @Test
  void unlockTellsOfALockThatHasExpired() throws Exception {
    DistributedLock lock = registry.obtain("foo");
    lock.lock(Duration.ofMillis(100));
    Lock other = registry(100, "").obtain("foo");
    assertFalse(Threads.begin(() -> other.tryLock()).end());
    until(() -> server.isFree("foo"));
    assertThrows(ConcurrentModificationException.class, lock::unlock);
    lock.lock();
    server.call("DEL", "foo");
    assertThrows(ConcurrentModificationException.class, lock::unlock);
  }

  @Test
  void aLockIsRenewedByItself() throws Exception {
    Lock lock = registry(1_000, "").obtain("foo");
    assertTrue(lock.tryLock());
    Thread.sleep(1_500);
    lock.unlock();
  }

  @Test
  void aLockIsRenewedByTheRegistry() throws Exception {
    assertThrows(IllegalStateException.class, () -> registry.renewLock("foo"));
    DistributedLock lock = registry.obtain("foo");
    assertTrue(lock.tryLock(Duration.ofMillis(100), Duration.ofSeconds(5)));
    registry.renewLock("foo");
    registry.renewLock("foo", Duration.ofSeconds(20));
    assertTrue((Long) server.call("PTTL", "foo") > 19_000);
    Lock other = registry(30_000, "").obtain("foo");
    assertFalse(other.tryLock(100, TimeUnit.MILLISECONDS));
    assertTrue((Long) server.call("PTTL", "foo") > 15_000, "who tries changes nothing");
    lock.unlock();
  }

  @Test
  void anotherThreadFailsAndUnlocksNothing() throws Exception {
    Lock lock = registry.obtain("foo");
    lock.lockInterruptibly();
    Threads.begin(() -> {
      assertFalse(registry.obtain("foo").tryLock(200, TimeUnit.MILLISECONDS));
      IllegalStateException error = assertThrows(IllegalStateException.class, registry.obtain("foo")::unlock);
      assertTrue(error.getMessage().contains("You do not own lock at"));
      return null;
    }).end();
    lock.unlock();
  }

  @Test
  void threadsOfTwoRegistriesTakeTurns() throws Exception {
    NativeLockRegistry second = registry(30_000, "");
    assertNotEquals(registry.obtain("foo"), second.obtain("foo"));
    Lock lock = registry.obtain("foo");
    lock.lock();
    List<Threads<Void>> threads = Threads.begin(10, number -> {
      Lock own = (number % 2 == 0 ? registry : second).obtain("foo");
      own.lockInterruptibly();
      own.unlock();
    });
    until(() -> server.places() == 10);
    Lock elsewhere = registry(30_000, "other:").obtain("foo");
    assertTrue(elsewhere.tryLock(), "another prefix is another lock");
    lock.unlock();
    elsewhere.unlock();
    Threads.endAll(threads);
  }

  @Test
  void onlyOneOfTwoWhoWaitGetsIt() throws Exception {
    Lock lock = registry.obtain("foo");
    lock.lock();
    Lock other = registry(30_000, "").obtain("foo");
    Threads<Boolean> first = Threads.begin(() -> {
      assertTrue(other.tryLock(10, TimeUnit.SECONDS));
      assertFalse(Threads.begin(() -> registry.obtain("foo").tryLock(1, TimeUnit.SECONDS)).end());
      other.unlock();
      return true;
    });
    until(() -> server.places() == 1);
    lock.unlock();
    assertTrue(first.end());
  }

  @Test
  void anInterruptDuringTheWorkDoesNotStopTheRelease() throws Exception {
    Threads.begin(() -> {
      registry.obtain("foo").lock();
      Thread.currentThread().interrupt();
      registry.obtain("foo").unlock();
      return null;
    }).end();
    assertTrue(server.isFree("foo"));
  }

  @Test
  void workUnderALock() throws Exception {
    assertEquals(42, registry.<Integer, RuntimeException>executeLocked("foo", () -> 42));
    server.call("LOCK.ACQUIRE", "foo", "somebody");
    assertThrows(TimeoutException.class, () -> registry.executeLocked("foo", Duration.ofMillis(50), () -> {}));
  }
}
