package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.*;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.*;

/** Who gets in, and who does not. */
class ExclusionTest extends WithServer {
  @ParameterizedTest
  @EnumSource
  void tryLockWaitsAsLongAsItIsTold(Library library) throws Exception {
    NativeLock lock = library.locks(server.port).lock("l");
    long first = lock.lockAndGetToken();
    Threads.begin(() -> {
      assertFalse(lock.tryLock());
      assertFalse(lock.tryLock(0, TimeUnit.SECONDS) || lock.tryLock(Long.MIN_VALUE, TimeUnit.SECONDS));
      assertFalse(lock.tryLock(1, TimeUnit.MILLISECONDS));
      assertFalse(lock.tryLock(1, 500, TimeUnit.MILLISECONDS));
      until(() -> server.lock("l").get("waiters").equals(List.of()));
      long begun = System.nanoTime();
      assertFalse(lock.tryLock(300, TimeUnit.MILLISECONDS));
      long waited = System.nanoTime() - begun;
      assertTrue(waited >= 290_000_000 && waited < 3_000_000_000L, "it waited " + waited);
      assertTrue(lock.acquire(Duration.ZERO).isEmpty());
      return null;
    }).end();
    until(() -> server.lock("l").get("waiting").equals(0L));
    Threads<Long> waiting = Threads.begin(() -> {
      assertTrue(lock.tryLock(20, 20, TimeUnit.SECONDS));
      return lock.hold().token();
    });
    until(() -> server.places() == 1);
    lock.unlock();
    assertTrue(waiting.end() > first);
  }

  @Test
  void aThreadOfACommonPoolRunsNothingElseWithinItsSection() throws Exception {
    Locks locks = Library.JEDIS.locks(server.port);
    NativeLock lock = locks.lock("l");
    CountDownLatch isOver = new CountDownLatch(1);
    server.call("LOCK.ACQUIRE", "other", "x", "LEASE", "300");
    CompletableFuture<Boolean> isInside = CompletableFuture.supplyAsync(() -> {
      // All other threads of the pool have something to do.
      IntStream.range(1, ForkJoinPool.commonPool().getParallelism()).forEach(nth -> CompletableFuture.runAsync(() -> {
        assertDoesNotThrow(() -> isOver.await(9, TimeUnit.SECONDS));
      }));
      lock.lock();
      CompletableFuture<Boolean> task = CompletableFuture.supplyAsync(lock::isHeldByCurrentThread);
      locks.lock("other").lock();
      locks.lock("other").unlock();
      lock.unlock();
      isOver.countDown();
      return task.join();
    });
    assertFalse(isInside.get(9, TimeUnit.SECONDS));
  }

  @Test
  void aThreadEntersAgainWithoutAskingTheServer() throws Exception {
    Locks locks = Library.JEDIS.locks(server.port);
    NativeLock lock = locks.lock("l");
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    assertThrows(IllegalMonitorStateException.class, lock::hold);
    lock.lock();
    long asked = server.info("lock", "lock_grants_immediate");
    assertTrue(locks.lock("l").tryLock());
    assertTrue(lock.tryLock(1, 1, TimeUnit.SECONDS));
    lock.lockInterruptibly();
    assertEquals(asked, server.info("lock", "lock_grants_immediate"));
    assertEquals(0, server.info("lock", "lock_reentries"));
    assertEquals(4, lock.getHoldCount());
    Threads.begin(() -> {
      assertFalse(lock.isHeldByCurrentThread());
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
      assertTrue(lock.isLocked());
      return null;
    }).end();
    for (int left = 4; left > 0; left--) {
      assertTrue(lock.isHeldByCurrentThread() && lock.isLocked());
      lock.unlock();
    }
    assertFalse(lock.isHeldByCurrentThread() || lock.isLocked());
    lock.lock();
    String second = lock.hold().owner();
    assertTrue(lock.hold().release());
    assertFalse(lock.isHeldByCurrentThread(), "a release of the hold itself counts");
    lock.lock();
    assertFalse(second.equals(lock.hold().owner()), "each outermost lock() is an owner of its own");
    lock.unlock();
  }

  @Test
  void namesOfRedissonsLockMeanWhatTheyMeanThere() throws Exception {
    NativeLock lock = Library.LETTUCE.locks(server.port).lock("l");
    assertEquals(-2, lock.remainTimeToLive());
    assertFalse(lock.forceUnlock());
    lock.lock(20, TimeUnit.SECONDS);
    assertTrue(lock.remainTimeToLive() > 19_000 && lock.remainTimeToLive() <= 20_000);
    assertEquals(1, lock.getHoldCount());
    Threads.begin(() -> lock.forceUnlock()).end();
    assertFalse(lock.isLocked());
    lock.unlock();
    assertTrue(lock.tryLock(0, -1, TimeUnit.SECONDS));
    assertTrue(lock.remainTimeToLive() > 29_000, "-1 is no lease");
    lock.unlock();
    assertEquals("l", lock.getName());
    assertThrows(UnsupportedOperationException.class, lock::newCondition);
  }

  @Test
  void readersPermitsAndNamesOfAnyBytes() throws Exception {
    Locks locks = Library.LETTUCE.locks(server.port);
    NativeLock shared = locks.lock("r").shared();
    Hold reader = shared.acquire(Duration.ZERO).orElseThrow();
    shared.lock();
    assertEquals("shared", server.lock("r").get("mode"));
    assertTrue(locks.lock("r").acquire(Duration.ZERO).isEmpty());
    assertThrows(IllegalMonitorStateException.class, () -> locks.lock("r").tryLock());
    shared.unlock();
    assertTrue(reader.release());
    NativeLock writer = locks.lock("r");
    writer.lock();
    shared.lock();
    assertEquals("exclusive", server.lock("r").get("mode"));
    shared.unlock();
    writer.unlock();
    NativeLock permits = locks.lock("s").limit(2);
    Hold one = permits.acquire(Duration.ZERO).orElseThrow();
    Hold two = permits.acquire(Duration.ZERO).orElseThrow();
    assertTrue(permits.acquire(Duration.ZERO).isEmpty());
    assertTrue(one.release() && two.release());
    byte[] odd = {(byte) 0xff, '\r', '\n', 0};
    Locks prefixed = Locks.create(Library.JEDIS.access(server.port), Duration.ofSeconds(30), "app:");
    prefixed.lock(odd).lock();
    assertTrue(prefixed.lock(odd).isHeldByCurrentThread() && prefixed.lock(odd).isLocked());
    prefixed.lock(odd).unlock();
    prefixed.lock("x").lock();
    assertEquals("held", server.lock("app:x").get("state"));
    prefixed.lock("x").unlock();
    assertThrows(IllegalArgumentException.class, () -> permits.limit(0));
    assertThrows(NullPointerException.class, () -> permits.atLeast(null));
    assertThrows(IllegalArgumentException.class, () -> permits.lock(0, TimeUnit.SECONDS));
  }

  @ParameterizedTest
  @EnumSource
  void whoWaitsInAClusterHasTheRightsOfTheClient(Library library) throws Exception {
    try (Server node = Server.cluster(Server.MODULE)) {
      node.call("ACL", "SETUSER", "waits", "on", ">secret", "~*", "&*", "+@all");
      node.call("ACL", "SETUSER", "default", "-ssubscribe");
      JedisClientConfig config = DefaultJedisClientConfig.builder().user("waits").password("secret").build();
      NativeLock lock = Library.locks(library.cluster(node.port, config), Duration.ofSeconds(30)).lock("l");
      Hold hold = lock.acquire();
      Threads<Hold> waiting = Threads.begin(lock::acquire);
      until(() -> node.places() == 1);
      assertTrue(hold.release() && waiting.end().release());
    }
  }

  @Test
  void workUnderALock() throws Exception {
    NativeLock lock = Library.JEDIS.locks(server.port).lock("l");
    assertEquals(42, lock.<Integer, Exception>call(hold -> {
      assertTrue(hold.token() > 0 && hold.validFor().toMillis() > 20_000);
      assertEquals(hold.key(), "l");
      assertFalse(Threads.begin(lock::tryLock).end());
      return 42;
    }));
    assertTrue(server.isFree("l"));
    assertThrows(ArithmeticException.class, () -> lock.call(hold -> Math.negateExact(Integer.MIN_VALUE)));
    assertTrue(server.isFree("l"));
    NativeLock once = lock.atLeast(Duration.ofSeconds(5));
    assertTrue(once.tryLock());
    once.unlock();
    assertTrue(lock.remainTimeToLive() > 4_000 && lock.remainTimeToLive() <= 5_000);
    assertFalse(once.tryLock());
  }

  @ParameterizedTest
  @EnumSource
  void anInterruptBeforeAnythingIsSent(Library library) {
    NativeLock lock = library.locks(server.port).lock("l");
    Thread.currentThread().interrupt();
    assertThrows(InterruptedException.class, lock::lockInterruptibly);
    Thread.currentThread().interrupt();
    assertThrows(InterruptedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
    assertTrue(server.isFree("l"));
    Thread.currentThread().interrupt();
    lock.lock();
    assertThrows(InterruptedException.class, lock::lockInterruptibly, "lock() tells of it, and entering again, too");
    Thread.currentThread().interrupt();
    lock.unlock();
    assertTrue(Thread.interrupted() && server.isFree("l"));
  }
}
