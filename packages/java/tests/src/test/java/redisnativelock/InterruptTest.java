package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** An interrupt ends a wait at once, whatever it waits for, and leaves nothing behind. */
class InterruptTest extends WithServer {
  private void endsAtOnce(Threads<?> waiting) throws Exception {
    long begun = System.nanoTime();
    waiting.thread.interrupt();
    assertInstanceOf(InterruptedException.class, waiting.failure());
    assertTrue(System.nanoTime() - begun < 1_000_000_000L, "it took " + (System.nanoTime() - begun));
  }

  private static Callable<Object> waitFor(NativeLock lock) {
    return () -> {
      lock.lockInterruptibly();
      return null;
    };
  }

  @ParameterizedTest
  @EnumSource
  void beforeAnythingIsSent(Library library) {
    NativeLock lock = library.locks(server.port).lock("l");
    Thread.currentThread().interrupt();
    assertThrows(InterruptedException.class, lock::lockInterruptibly);
    Thread.currentThread().interrupt();
    assertThrows(InterruptedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
    assertTrue(server.isFree("l"));
    Thread.currentThread().interrupt();
    lock.lock();
    assertTrue(Thread.interrupted(), "lock() can't be interrupted, and tells of it afterwards");
    Thread.currentThread().interrupt();
    lock.unlock();
    assertTrue(Thread.interrupted() && server.isFree("l"));
  }

  @ParameterizedTest
  @EnumSource
  void whileAPlaceIsWaitedFor(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    Hold holder = locks.lock("l").acquire(java.time.Duration.ZERO).orElseThrow();
    Threads<?> waiting = Threads.begin(waitFor(locks.lock("l")));
    Threads<?> trying = Threads.begin(() -> locks.lock("l").tryLock(1, TimeUnit.HOURS));
    until(() -> server.places() == 2);
    long connections = server.connections();
    endsAtOnce(waiting);
    endsAtOnce(trying);
    until(() -> server.lock("l").get("waiting").equals(0L));
    assertTrue(server.connections() <= connections && locks.waits.size() == 1);
    assertTrue(holder.release() && server.isFree("l"));
  }

  @ParameterizedTest
  @EnumSource
  void whileTheServerDoesNotAnswer(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    locks.lock("other").lock();
    server.stop();
    List<Threads<?>> asking = new ArrayList<>();
    for (int number = 0; number < 3; number++) {
      asking.add(Threads.begin(waitFor(locks.lock("l"))));
    }
    until(() -> locks.waits.size() == 4);
    for (Threads<?> one : asking) {
      endsAtOnce(one);
    }
    server.goOn();
    until(() -> server.isFree("l"));
    locks.lock("other").unlock();
    until(() -> locks.waits.isEmpty() && server.places() == 0);
  }

  @ParameterizedTest
  @EnumSource
  void whileTheSubscriptionOrTheClaimIsNotAnswered(Library library) throws Exception {
    server.call("CONFIG", "SET", "lock.claim-timeout", "60");
    for (String swallowed : List.of("subscribe", ":0\r\n", "message", ":1\r\n")) {
      try (Proxy proxy = new Proxy(server.port)) {
        Locks locks = library.locks(proxy.port);
        Hold holder = library.locks(server.port).lock("l").acquire(java.time.Duration.ZERO).orElseThrow();
        boolean isClaim = swallowed.equals("message") || swallowed.equals(":1\r\n");
        if (!isClaim) {
          proxy.swallow(swallowed);
        }
        Threads<?> waiting = Threads.begin(waitFor(locks.lock("l")));
        if (isClaim) {
          until(() -> server.places() == 1);
          proxy.swallow(swallowed);
          // So that it has to claim first.
          TimeUnit.MILLISECONDS.sleep(80);
          holder.release();
        }
        until(() -> proxy.swallowed() > 0);
        endsAtOnce(waiting);
        holder.release();
        proxy.swallow(null);
        until(() -> server.isFree("l"));
      }
      Library.closeAll();
    }
  }

  @ParameterizedTest
  @EnumSource
  void whileAConnectionIsBlocked(Library library) throws Exception {
    server.call("ACL", "SETUSER", "deaf", "on", ">deaf", "~*", "+@all", "-subscribe", "resetchannels", "&redislock:*");
    Locks locks = Library.locks(library.access(server.port, "deaf"), java.time.Duration.ofSeconds(30));
    Hold holder = locks.lock("l").acquire(java.time.Duration.ZERO).orElseThrow();
    Threads<?> waiting = Threads.begin(waitFor(locks.lock("l")));
    until(() -> server.info("clients", "blocked_clients") == 1);
    long connections = server.connections();
    endsAtOnce(waiting);
    until(() -> server.lock("l").get("waiting").equals(0L) && server.connections() < connections);
    assertTrue(holder.release());
  }

  @ParameterizedTest
  @EnumSource
  void fiveHundredRequestsAtRandomMoments(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    locks.lock("warm").lock();
    locks.lock("warm").unlock();
    List<Threads<Boolean>> requests = new ArrayList<>();
    for (int number = 0; number < 500; number++) {
      NativeLock lock = locks.lock("customer:" + number % 7);
      Threads<Boolean> request = Threads.begin(() -> {
        lock.lockInterruptibly();
        try {
          Thread.sleep(1);
        } finally {
          lock.unlock();
        }
        return true;
      });
      requests.add(request);
      TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextInt(1500));
      requests.get(ThreadLocalRandom.current().nextInt(requests.size())).thread.interrupt();
      request.thread.interrupt();
    }
    for (Threads<Boolean> request : requests) {
      Throwable failure = request.failure();
      assertTrue(failure == null || failure instanceof InterruptedException, () -> "" + failure);
    }
    for (int number = 0; number < 7; number++) {
      String key = "customer:" + number;
      until(() -> server.isFree(key));
      assertTrue(locks.lock(key).tryLock());
      locks.lock(key).unlock();
    }
    until(() -> locks.waits.isEmpty() && server.places() == 0);
    // The pool's, one that listens, and the one that looks.
    assertTrue(server.connections() <= 10, server.text("CLIENT", "LIST"));
    assertEquals(0, server.info("clients", "blocked_clients"));
    assertFalse(Thread.interrupted());
  }
}
