package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLongArray;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Connections break; places, holds and those who wait stay. */
class BrokenConnectionsTest extends WithServer {
  private static Threads<Long> begin(NativeLock lock) {
    return Threads.begin(() -> {
      long token = lock.lockAndGetToken();
      lock.unlock();
      return token;
    });
  }

  @ParameterizedTest
  @EnumSource
  void aPlaceIsKeptWhenTheSubscribersConnectionIsKilled(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    Hold holder = locks.lock("l").acquire(Duration.ZERO).orElseThrow();
    List<Threads<Long>> waiting = new ArrayList<>();
    for (int number = 1; number <= 3; number++) {
      int places = number;
      waiting.add(begin(locks.lock("l")));
      until(() -> server.places() == places);
    }
    Object before = owners();
    long subscribed = server.info("stats", "total_connections_received");
    assertEquals(1L, server.call("CLIENT", "KILL", "TYPE", "pubsub"));
    until(() -> server.text("CLIENT", "LIST").contains(" sub=1 "));
    assertTrue(server.info("stats", "total_connections_received") > subscribed);
    assertEquals(before, owners());
    holder.release();
    long last = 0;
    for (Threads<Long> thread : waiting) {
      assertTrue(thread.end() > last, "first come, first served");
      last = thread.end();
    }
  }

  private Object owners() {
    return ((List<?>) server.lock("l").get("waiters")).stream()
        .map(waiter -> new String((byte[]) ((List<?>) waiter).get(1))).toList();
  }

  @ParameterizedTest
  @EnumSource
  void aRequestWhoseAnswerIsCutOffCountsOnce(Library library) throws Exception {
    try (Proxy proxy = new Proxy(server.port)) {
      Locks locks = library.locks(proxy.port);
      NativeLock lock = locks.lock("l");
      // The token of the grant, the place, and the 1 of the release.
      lock.lock();
      lock.unlock();
      proxy.cutAt(":17");
      lock.lock();
      assertEquals(1, proxy.swallowed());
      Map<String, Object> info = server.lock("l");
      assertEquals(1L, ((List<?>) ((List<?>) info.get("holders")).get(0)).get(3));
      Threads<Long> waiting = begin(lock);
      until(() -> server.places() == 1);
      proxy.cut();
      proxy.cutAt(":1\r\n");
      lock.unlock();
      waiting.end();
      until(() -> server.isFree("l") && locks.waits.isEmpty());
    }
  }

  @ParameterizedTest
  @EnumSource
  void aRequestWhoseAnswerVanishesIsSentOverAnotherConnection(Library library) throws Exception {
    try (Proxy proxy = new Proxy(server.port)) {
      NativeLock lock = library.locks(proxy.port).lock("l");
      lock.lock();
      lock.unlock();
      proxy.swallow(":17");
      Threads<Long> asking = begin(lock);
      until(() -> proxy.swallowed() > 0);
      proxy.swallow(null);
      asking.end();
      until(() -> server.isFree("l"));
    }
  }

  @ParameterizedTest
  @EnumSource
  void allGoOnWithinSecondsWhenConnectionsAreKilledUnderLoad(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    AtomicLongArray done = new AtomicLongArray(100);
    AtomicBoolean isOver = new AtomicBoolean();
    List<Threads<Void>> threads = new ArrayList<>();
    for (int number = 0; number < done.length(); number++) {
      int own = number;
      NativeLock lock = locks.lock("l" + number % 4);
      threads.add(Threads.begin(() -> {
        while (!isOver.get()) {
          lock.lock();
          done.incrementAndGet(own);
          lock.unlock();
        }
        return null;
      }));
    }
    for (String type : List.of("pubsub", "normal", "pubsub", "normal", "normal", "pubsub")) {
      long[] before = new long[done.length()];
      for (int number = 0; number < before.length; number++) {
        before[number] = done.get(number);
      }
      for (int number = 0; number < before.length; number++) {
        int one = number;
        until(() -> done.get(one) > before[one]);
      }
      server.call("CLIENT", "KILL", "TYPE", type);
    }
    isOver.set(true);
    for (Threads<Void> thread : threads) {
      thread.end();
    }
    until(() -> server.places() == 0 && locks.waits.isEmpty());
  }

  @ParameterizedTest
  @EnumSource
  void aServerThatIsGoneForThreeSecondsIsWaitedFor(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    NativeLock lock = locks.lock("l");
    Hold holder = lock.acquire(Duration.ZERO).orElseThrow();
    List<Threads<Long>> waiting = List.of(begin(lock), begin(lock), begin(lock));
    until(() -> server.places() == 3);
    server.kill();
    long gone = System.nanoTime();
    until(() -> System.nanoTime() - gone > 3_000_000_000L);
    server.restart();
    for (Threads<Long> thread : waiting) {
      thread.end();
    }
    holder.release();
  }

  @ParameterizedTest
  @EnumSource
  void aMessageThatIsLostDoubledOrForgedDoesNoHarm(Library library) throws Exception {
    try (Proxy proxy = new Proxy(server.port)) {
      Locks locks = library.locks(proxy.port);
      NativeLock lock = locks.lock("l");
      lock.lock();
      Threads<Long> waiting = begin(lock);
      until(() -> server.places() == 1);
      String channel = new String(locks.channel("l".getBytes()));
      for (String message : List.of("", "nonsense", "1:0,1:l,9:", "1:0,1:l,5:other,2:17,4:2000,", "99999999999:")) {
        server.call("PUBLISH", channel, message);
      }
      proxy.swallow("message");
      lock.unlock();
      until(() -> proxy.swallowed() > 0);
      proxy.swallow(null);
      // It asks again by itself, and is answered with what it holds, or with its place.
      waiting.end();
      until(() -> server.isFree("l"));
    }
  }
}
