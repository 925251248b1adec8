package redisnativelock;

import static org.junit.jupiter.api.Assertions.assertTrue;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.*;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.*;

/** Connections break, and all go on: with the oldest client libraries, too. */
class BrokenConnectionsTest extends WithServer {
  @ParameterizedTest
  @EnumSource
  void allGoOnWithinSecondsWhenConnectionsAreKilledUnderLoad(Library library) throws Exception {
    Locks locks = library.locks(server.port);
    AtomicLongArray done = new AtomicLongArray(100);
    AtomicBoolean isOver = new AtomicBoolean();
    List<Threads<Void>> threads = Threads.begin(done.length(), number -> {
      NativeLock lock = locks.lock("l" + number % 4);
      while (!isOver.get()) {
        lock.lock();
        done.incrementAndGet(number);
        lock.unlock();
      }
    });
    for (String type : List.of("pubsub", "normal", "pubsub", "normal", "normal", "pubsub")) {
      IntStream.range(0, done.length()).forEach(number -> done.set(number, 0));
      until(() -> IntStream.range(0, done.length()).allMatch(number -> done.get(number) > 0));
      server.call("CLIENT", "KILL", "TYPE", type);
    }
    isOver.set(true);
    Threads.endAll(threads);
    until(() -> server.places() == 0 && locks.waits.isEmpty());
  }

  @Test
  void aRenewalThatJedisSendsAgainMayComeTwice() throws Exception {
    try (Server node = Server.cluster(Server.MODULE)) {
      // Jedis asks for them when it connects, here because the server stands still: it is about to send again.
      Supplier<RedisCredentials> credentials = () -> {
        node.signal("CONT");
        return new DefaultRedisCredentials("default", "any");
      };
      var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(200).credentialsProvider(credentials).build();
      Hold hold = Library.locks(Library.JEDIS.cluster(node.port, config), Duration.ofHours(1)).lock("l").acquire();
      node.signal("STOP");
      hold.renew(Duration.ofSeconds(6));
      hold.renew(Duration.ofHours(1));
      assertTrue(hold.validFor().toSeconds() <= 6, "the shorter lease may still come");
    }
  }
}
