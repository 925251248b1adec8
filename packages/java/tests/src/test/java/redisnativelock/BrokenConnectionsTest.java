package redisnativelock;

import static redisnativelock.Server.until;

import java.util.*;
import java.util.concurrent.atomic.*;
import java.util.stream.IntStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Connections break, and all go on: with the oldest client libraries, too. */
class BrokenConnectionsTest extends WithServer {
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
      IntStream.range(0, done.length()).forEach(number -> done.set(number, 0));
      until(() -> IntStream.range(0, done.length()).allMatch(number -> done.get(number) > 0));
      server.call("CLIENT", "KILL", "TYPE", type);
    }
    isOver.set(true);
    Threads.endAll(threads);
    until(() -> server.places() == 0 && locks.waits.isEmpty());
  }
}
