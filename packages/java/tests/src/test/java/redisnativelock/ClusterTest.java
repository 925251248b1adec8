package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

/** More servers than one: a cluster, and Sentinel. */
class ClusterTest {
  private final List<Server> nodes = new ArrayList<>();

  @AfterEach
  void end() {
    Library.closeAll();
    nodes.forEach(Server::close);
  }

  private void cluster() throws Exception {
    List<String> create = new ArrayList<>(List.of("redis-cli", "--cluster", "create"));
    for (int number = 0; number < 3; number++) {
      // The port of their bus is 10000 more.
      nodes.add(new Server("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"));
      create.add("127.0.0.1:" + nodes.get(number).port);
    }
    create.add("--cluster-yes");
    assertEquals(0, new ProcessBuilder(create).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().waitFor());
    for (Server node : nodes) {
      until(() -> node.text("CLUSTER", "INFO").contains("cluster_state:ok"));
    }
  }

  private long places() {
    return nodes.stream().mapToLong(Server::places).sum();
  }

  @ParameterizedTest
  @EnumSource
  void locksOnAllNodesOfACluster(Library library) throws Exception {
    cluster();
    Locks locks = Library.locks(library.cluster(nodes.get(0).port), Duration.ofSeconds(30));
    List<Hold> held = new ArrayList<>();
    List<Threads<Boolean>> waiting = new ArrayList<>();
    for (int number = 0; number < 12; number++) {
      held.add(locks.lock("key:" + number).acquire(Duration.ZERO).orElseThrow());
    }
    assertFalse(locks.lock("key:0").tryLock());
    assertFalse(locks.lock("key:0").tryLock(50, TimeUnit.MILLISECONDS));
    for (int number = 0; number < 12; number++) {
      NativeLock lock = locks.lock("key:" + number);
      waiting.add(Threads.begin(() -> {
        lock.lock();
        lock.hold().renew(Duration.ofSeconds(5));
        return lock.hold().release();
      }));
    }
    until(() -> places() == 12);
    for (Server node : nodes) {
      assertEquals(1, node.text("CLIENT", "LIST").lines().filter(line -> !line.contains(" ssub=0")).count());
    }
    for (Hold hold : held) {
      assertTrue(hold.release());
    }
    for (Threads<Boolean> thread : waiting) {
      assertTrue(thread.end());
    }
    until(() -> places() == 0);
  }

  @ParameterizedTest
  @EnumSource
  void aSlotMovesWhileItIsWaitedFor(Library library) throws Exception {
    cluster();
    Locks locks = Library.locks(library.cluster(nodes.get(0).port), Duration.ofSeconds(60));
    int slot = locks.access.slot("moving".getBytes());
    Hold hold = locks.lock("moving").acquire(Duration.ZERO).orElseThrow();
    Threads<Boolean> waiting = Threads.begin(() -> locks.lock("moving").tryLock(40, TimeUnit.SECONDS));
    until(() -> places() == 1);
    Server source = nodes.stream().filter(node -> node.places() == 1).findFirst().orElseThrow();
    Server target = nodes.stream().filter(node -> node != source).findFirst().orElseThrow();
    String to = target.text("CLUSTER", "MYID");
    target.call("CLUSTER", "SETSLOT", "" + slot, "IMPORTING", source.text("CLUSTER", "MYID"));
    source.call("CLUSTER", "SETSLOT", "" + slot, "MIGRATING", to);
    source.call("MIGRATE", "127.0.0.1", "" + target.port, "moving", "0", "5000");
    for (Server node : List.of(target, source, nodes.get(0), nodes.get(1), nodes.get(2))) {
      node.call("CLUSTER", "SETSLOT", "" + slot, "NODE", to);
    }
    until(() -> target.places() == 1);
    assertTrue(hold.release());
    assertTrue(waiting.end());
  }

  @ParameterizedTest
  @EnumSource
  void allGoOnInAClusterWhenConnectionsAreKilled(Library library) throws Exception {
    cluster();
    Locks locks = Library.locks(library.cluster(nodes.get(0).port), Duration.ofSeconds(30));
    AtomicLongArray done = new AtomicLongArray(60);
    AtomicBoolean isOver = new AtomicBoolean();
    List<Threads<Void>> threads = new ArrayList<>();
    for (int number = 0; number < done.length(); number++) {
      int own = number;
      threads.add(Threads.begin(() -> {
        while (!isOver.get()) {
          locks.lock("l" + own % 9).lock();
          done.incrementAndGet(own);
          locks.lock("l" + own % 9).unlock();
        }
        return null;
      }));
    }
    for (String type : List.of("normal", "pubsub", "normal", "pubsub")) {
      for (int number = 0; number < done.length(); number++) {
        int one = number;
        long before = done.get(one);
        until(() -> done.get(one) > before);
      }
      nodes.forEach(node -> node.call("CLIENT", "KILL", "TYPE", type));
    }
    isOver.set(true);
    for (Threads<Void> thread : threads) {
      thread.end();
    }
  }

  @ParameterizedTest
  @EnumSource
  void aClusterWithoutTheModule(Library library) {
    Server node = Server.withoutTheModule("--cluster-enabled", "yes");
    nodes.add(node);
    node.call("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
    until(() -> node.text("CLUSTER", "INFO").contains("cluster_state:ok"));
    Locks locks = Library.locks(library.cluster(node.port), Duration.ofSeconds(30));
    assertThrows(NoModuleException.class, locks.lock("l")::lock);
  }

  @ParameterizedTest
  @EnumSource
  void sentinelNamesANewPrimaryWhileItIsWaitedFor(Library library) throws Exception {
    Server primary = new Server();
    Server replica = new Server("--replicaof", "127.0.0.1", "" + primary.port);
    nodes.addAll(List.of(primary, replica));
    until(() -> replica.text("INFO", "replication").contains("master_link_status:up"));
    int port = ThreadLocalRandom.current().nextInt(32000, 32700);
    Path conf = Files.createTempDirectory("sentinel").resolve("sentinel.conf");
    Files.writeString(conf, "port " + port + "\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 " + primary.port
        + " 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n");
    Process sentinel = new ProcessBuilder(Server.BINARY, conf.toString(), "--sentinel")
        .redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
    try {
      until(() -> isAnswered(() -> knowsTheReplica(port)));
      Locks locks = Library.locks(library.sentinel(port), Duration.ofSeconds(30));
      primary.call("LOCK.ACQUIRE", "l", "somebody", "LEASE", "600000");
      primary.call("WAIT", "1", "5000");
      Threads<Boolean> waiting = Threads.begin(() -> locks.lock("l").tryLock(60, TimeUnit.SECONDS));
      until(() -> primary.places() == 1);
      primary.kill();
      until(() -> isAnswered(() -> replica.places() == 1));
      replica.call("LOCK.BREAK", "l");
      assertTrue(waiting.end());
    } finally {
      sentinel.destroyForcibly().waitFor();
    }
  }

  private static boolean knowsTheReplica(int port) {
    try (Jedis jedis = new Jedis("127.0.0.1", port)) {
      return !jedis.sentinelReplicas("main").isEmpty();
    }
  }

  /** Sentinel listens a moment after it starts, and closes the connections of the server that it promotes. */
  private static boolean isAnswered(BooleanSupplier question) {
    try {
      return question.getAsBoolean();
    } catch (JedisException notYet) {
      return false;
    }
  }
}
