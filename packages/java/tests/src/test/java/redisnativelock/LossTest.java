package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.concurrent.*;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What is kept up, and for how long; and what is lost. */
class LossTest extends WithServer {
  private NativeLock lock(Duration lease) {
    return Library.JEDIS.locks(server.port, lease).lock("l");
  }

  private static void assertLost(Executable work) {
    assertEquals(NativeLockException.LOST, assertThrows(NativeLockException.class, work).code());
  }

  @Test
  void aLeaseThatIsGivenIsNotRenewed() throws Exception {
    NativeLock lock = lock(Duration.ofSeconds(30));
    lock.lock(200, TimeUnit.MILLISECONDS);
    Hold hold = lock.hold();
    hold.lost().get(5, TimeUnit.SECONDS);
    assertFalse(lock.isHeldByCurrentThread());
    assertEquals(0, lock.getHoldCount());
    assertLost(() -> hold.renew(Duration.ofSeconds(1)));
    until(() -> server.isFree("l"));
    assertTrue(lock.tryLock(), "it can be taken anew, though it was never unlocked");
    assertTrue(lock.hold().token() > hold.token());
    assertEquals(1, lock.getHoldCount());
    lock.unlock();
    assertTrue(server.isFree("l"));
    assertTrue(lock.hold().isLost(), "that the outer one was lost is still known");
    lock.unlock();
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
  }

  @Test
  void aLockThatSomebodyBreaksIsLost() throws Exception {
    NativeLock lock = lock(Duration.ofSeconds(1));
    assertLost(() -> lock.call(hold -> {
      assertTrue(Threads.begin(lock::forceUnlock).end());
      hold.lost().get(5, TimeUnit.SECONDS);
      assertLost(lock::lock); // who has lost it does not go on inside
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
  void aRenewalThatIsNotAnsweredMayComeYetAndOneThatIsRefusedChangesNothing() throws Exception {
    Hold hold = lock(Duration.ofHours(1)).acquire();
    server.signal("STOP");
    assertThrows(NativeLockException.class, () -> hold.renew(Duration.ofSeconds(6)));
    server.signal("CONT");
    hold.renew(Duration.ofHours(1));
    assertTrue(hold.validFor().toSeconds() <= 6, "the shorter lease may still come");
    Hold other = Library.JEDIS.locks(server.port).lock("other").acquire();
    server.call("CONFIG", "SET", "lock.max-lease", "60000");
    assertThrows(NativeLockException.class, () -> other.renew(Duration.ofHours(1)));
    other.renew();
    assertTrue(other.validFor().toSeconds() <= 30 && other.release());
  }

  @Test
  void aCallbackThatBlocksHoldsUpNoRenewal() throws Exception {
    Locks locks = Library.LETTUCE.locks(server.port, Duration.ofSeconds(1));
    locks.lock("l").lock();
    locks.lock("other").lock();
    CompletableFuture<Void> blocks = locks.lock("l").hold().lost().thenRun(() -> new CompletableFuture<>().join());
    locks.lock("l").forceUnlock();
    until(() -> locks.lock("l").hold().isLost());
    Thread.sleep(2_000);
    assertTrue(locks.lock("other").isHeldByCurrentThread() && !blocks.isDone());
    locks.lock("other").unlock();
  }

  @Test
  void aThreadThatEndsWithoutUnlockingGivesItBack() throws Exception {
    NativeLock lock = lock(Duration.ofSeconds(1)).atLeast(Duration.ofSeconds(2));
    long begun = System.nanoTime();
    Threads.begin(() -> lock.lockAndGetToken()).end();
    Hold free = Threads.begin(() -> lock.acquire()).end();
    assertTrue(System.nanoTime() - begun > 1_990_000_000L, "but not before its time");
    Thread.sleep(1_500);
    assertTrue(free.release(), "a hold that is no thread's stays");
  }

  @ParameterizedTest
  @EnumSource
  void aGrantThatNobodyWaitsForIsGivenBack(Library library) {
    Locks locks = library.locks(server.port);
    Object token = server.call("LOCK.ACQUIRE", "l", "x");
    locks.hear(("1:0,1:l,1:x," + ("" + token).length() + ":" + token + ",4:2000,").getBytes());
    until(() -> server.isFree("l"));
  }

  @Test
  void aLockThatIsKeptForAWhileIsKeptSoLongAndNoLonger() {
    NativeLock lock = Library.LETTUCE.locks(server.port).lock("l").atLeast(Duration.ofSeconds(4));
    lock.lock();
    server.signal("STOP");
    lock.unlock();
    server.signal("CONT");
    until(() -> (Long) server.call("PTTL", "l") <= 4_000);
    assertFalse(lock.tryLock());
    until(() -> server.isFree("l"));
  }
}
