package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A release that fails holds nobody up, hides no error, and is made up for later. */
class ReleaseTest extends WithServer {
  private static void inASecond(Runnable work) {
    long begun = System.nanoTime();
    work.run();
    long took = System.nanoTime() - begun;
    assertTrue(took < 1_000_000_000L, "it took " + took);
  }

  @ParameterizedTest
  @EnumSource
  void theServerStandsStillAtTheEndOfASection(Library library) {
    NativeLock lock = library.locks(server.port).lock("l");
    lock.lock();
    server.stop();
    inASecond(lock::unlock);
    assertFalse(lock.isHeldByCurrentThread());
    server.goOn();
    until(() -> server.isFree("l"));
  }

  @ParameterizedTest
  @EnumSource
  void theServerIsGoneForFiveSecondsAtTheEndOfASection(Library library) throws Exception {
    NativeLock lock = library.locks(server.port).lock("l");
    lock.lock();
    server.kill();
    long gone = System.nanoTime();
    inASecond(lock::unlock);
    until(() -> System.nanoTime() - gone > 5_000_000_000L);
    server.restart();
    Threads.begin(() -> {
      lock.lock();
      lock.unlock();
      return null;
    }).end();
    assertTrue(server.isFree("l"));
  }

  @Test
  void theWorksOwnErrorStaysThoughTheReleaseFails() {
    NativeLock lock = Library.JEDIS.locks(server.port).lock("l");
    inASecond(() -> assertThrows(ArithmeticException.class, () -> lock.call(hold -> {
      server.kill();
      throw new ArithmeticException();
    })));
  }

  @Test
  void aLockThatIsKeptForAWhileIsKeptSoLongAndNoLonger() {
    NativeLock lock = Library.LETTUCE.locks(server.port).lock("l").atLeast(Duration.ofSeconds(2));
    lock.lock();
    server.stop();
    lock.unlock();
    server.goOn();
    until(() -> (Long) server.call("PTTL", "l") <= 2_000);
    assertFalse(lock.tryLock());
    until(() -> server.isFree("l"));
  }

  @Test
  void aReleaseUnderATokenThatIsNotItsOwnTakesNothing() {
    NativeLock lock = Library.JEDIS.locks(server.port).lock("l");
    lock.lock();
    server.call("DEL", "l");
    server.call("LOCK.ACQUIRE", "l", "somebody");
    lock.unlock();
    assertFalse(server.isFree("l"));
  }
}
