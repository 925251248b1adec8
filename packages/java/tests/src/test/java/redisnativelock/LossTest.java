package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What is held is kept up, and a loss is told in time. */
class LossTest extends WithServer {
  private NativeLock lock(Duration lease) {
    return Library.JEDIS.locks(server.port, lease).lock("l");
  }

  @ParameterizedTest
  @EnumSource
  void aHoldIsKeptUp(Library library) {
    NativeLock lock = library.locks(server.port, Duration.ofMillis(300)).lock("l");
    long token = lock.lockAndGetToken();
    long end = System.nanoTime() + 1_200_000_000L;
    until(() -> System.nanoTime() > end);
    assertTrue(lock.isHeldByCurrentThread() && !lock.hold().lost().isDone());
    assertEquals(token, server.lock("l").get("fence"));
    lock.hold().renew(Duration.ofSeconds(20));
    assertTrue(lock.hold().validFor().toMillis() > 19_000 && lock.remainTimeToLive() > 19_000);
    lock.unlock();
    assertTrue(server.isFree("l"));
  }

  @Test
  void aLeaseThatIsGivenIsNotRenewed() throws Exception {
    NativeLock lock = lock(Duration.ofSeconds(30));
    lock.lock(200, TimeUnit.MILLISECONDS);
    Hold hold = lock.hold();
    hold.lost().get(5, TimeUnit.SECONDS);
    assertFalse(lock.isHeldByCurrentThread());
    assertEquals(0, lock.getHoldCount());
    assertThrows(LockLostException.class, () -> hold.renew(Duration.ofSeconds(1)));
    until(() -> server.isFree("l"));
    assertTrue(lock.tryLock(), "it can be taken anew, though it was never unlocked");
    assertTrue(lock.hold().token() > hold.token());
    lock.unlock();
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
  }

  @ParameterizedTest
  @EnumSource
  void aLossIsToldBeforeTheLeaseEndsThoughTheServerStandsStill(Library library) throws Exception {
    NativeLock lock = library.locks(server.port, Duration.ofSeconds(1)).lock("l");
    long before = System.nanoTime();
    lock.lock();
    until(() -> lock.hold().validFor().toMillis() < 800);
    server.stop();
    CompletableFuture<Long> told = lock.hold().lost().thenApply(lost -> System.nanoTime());
    long after = System.nanoTime();
    long at = Threads.end(told);
    assertTrue(at - after < 1_000_000_000L && at - before > 200_000_000L, "told after " + (at - after));
    assertTrue(lock.hold().isLost() && lock.hold().validFor().isZero());
    assertThrows(LockLostException.class, lock::lock, "who has lost it does not go on inside");
    server.goOn();
    lock.unlock();
    until(() -> server.isFree("l"));
    lock.lock();
    lock.unlock();
  }

  @Test
  void aLockThatSomebodyBreaksIsLost() throws Exception {
    NativeLock lock = lock(Duration.ofMillis(300));
    assertThrows(LockLostException.class, () -> lock.call(hold -> {
      assertTrue(Threads.begin(lock::forceUnlock).end());
      hold.lost().get(5, TimeUnit.SECONDS);
      return 1;
    }));
    assertThrows(ArithmeticException.class, () -> lock.call(hold -> {
      server.call("DEL", "l");
      hold.lost().get(5, TimeUnit.SECONDS);
      throw new ArithmeticException("the work's own error stays");
    }));
    assertTrue(server.isFree("l"));
  }

  @Test
  void aCallbackThatBlocksHoldsUpNoRenewal() throws Exception {
    Locks locks = Library.LETTUCE.locks(server.port, Duration.ofMillis(300));
    locks.lock("l").lock();
    locks.lock("other").lock();
    CompletableFuture<Void> blocks = locks.lock("l").hold().lost().thenRun(() -> new CompletableFuture<>().join());
    locks.lock("l").forceUnlock();
    until(() -> locks.lock("l").hold().isLost());
    long end = System.nanoTime() + 1_000_000_000L;
    until(() -> System.nanoTime() > end);
    assertTrue(locks.lock("other").isHeldByCurrentThread() && !blocks.isDone());
    locks.lock("other").unlock();
  }

  @Test
  void aThreadThatEndsWithoutUnlockingGivesItBack() throws Exception {
    NativeLock lock = lock(Duration.ofSeconds(1));
    Threads.begin(() -> lock.lockAndGetToken()).end();
    lock.lock();
    lock.unlock();
    Hold free = Threads.begin(() -> lock.acquire(Duration.ZERO).orElseThrow()).end();
    long end = System.nanoTime() + 1_500_000_000L;
    until(() -> System.nanoTime() > end);
    assertTrue(free.release(), "a hold that is no thread's stays");
  }

  @Test
  void workBeginsBeforeTheClaimIfTheWaitWasShort() throws Exception {
    NativeLock lock = lock(Duration.ofSeconds(30));
    lock.lock();
    Threads<Duration> waiting = Threads.begin(() -> {
      lock.lock();
      Duration first = lock.hold().validFor();
      until(() -> lock.hold().validFor().toMillis() > 20_000);
      lock.unlock();
      return first;
    });
    until(() -> server.places() == 1);
    lock.unlock();
    assertTrue(waiting.end().toMillis() < 2_000);
    assertEquals(1, server.info("lock", "lock_claims"));
  }

  @Test
  void whoWaitedLongClaimsFirst() throws Exception {
    server.call("CONFIG", "SET", "lock.claim-timeout", "300");
    NativeLock lock = lock(Duration.ofSeconds(30));
    lock.lock();
    Threads<Duration> waiting = Threads.begin(() -> {
      lock.lock();
      return lock.hold().validFor();
    });
    until(() -> server.places() == 1);
    long begun = System.nanoTime();
    until(() -> System.nanoTime() - begun > 300_000_000L);
    lock.unlock();
    assertTrue(waiting.end().toMillis() > 20_000);
  }
}
