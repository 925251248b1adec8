package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Real Redisson beside it, on the same lock. */
class RedissonTest extends WithServer {
  private final RedissonClient redisson = Redisson.create(config());

  private Config config() {
    Config config = new Config();
    config.useSingleServer().setAddress("redis://127.0.0.1:" + server.port);
    return config;
  }

  @AfterEach
  void shutDown() {
    redisson.shutdown();
  }

  @ParameterizedTest
  @EnumSource
  void eachKeepsTheOtherOut(Library library) throws Exception {
    NativeLock lock = library.locks(server.port).lock("l");
    RLock theirs = redisson.getLock("l");
    lock.lock();
    assertFalse(theirs.tryLock());
    assertTrue(theirs.isLocked());
    Threads<Boolean> waiting = Threads.begin(() -> {
      boolean isHad = theirs.tryLock(10, TimeUnit.SECONDS);
      theirs.unlock();
      return isHad;
    });
    until(() -> server.text("CLIENT", "LIST").contains(" sub=1 "));
    lock.unlock();
    assertTrue(waiting.end());
    theirs.lock();
    assertTrue(lock.isLocked());
    assertFalse(lock.tryLock());
    Threads<Boolean> ours = Threads.begin(() -> lock.tryLock(10, TimeUnit.SECONDS));
    until(() -> server.places() == 1);
    theirs.unlock();
    assertTrue(ours.end());
  }

  @ParameterizedTest
  @EnumSource
  void theyCountTogether(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    int[] counter = {0};
    Threads.endAll(Threads.begin(8, number -> {
      Lock lock = number % 2 == 0 ? locks.lock("l") : redisson.getLock("l");
      for (int round = 0; round < 40; round++) {
        lock.lock();
        int seen = counter[0];
        Thread.yield();
        counter[0] = seen + 1;
        lock.unlock();
      }
    }));
    assertEquals(320, counter[0]);
  }
}
