package redisnativelock;

import java.io.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import redis.clients.jedis.*;
import redis.clients.jedis.exceptions.JedisException;

/** A server with the lock module, started here. */
public final class Server implements AutoCloseable {
  static final String BINARY = System.getenv().getOrDefault("REDISLOCK_SERVER", "redis-server");
  static final String[] MODULE = {"--loadmodule",
      new File(System.getenv().getOrDefault("REDISLOCK_MODULE", "../../../target/release/libredislock.so")).getPath()};

  public final int port;
  private Process process;

  public Server() {
    this("no", MODULE);
  }

  /** A cluster of one node, with or without the module. */
  static Server cluster(String... module) {
    Server node = new Server("yes", module);
    node.call("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
    until(() -> node.text("CLUSTER", "INFO").contains("cluster_state:ok"));
    return node;
  }

  private Server(String isCluster, String... module) {
    int candidate = 0;
    try {
      Path folder = Files.createTempDirectory("redislock");
      folder.toFile().deleteOnExit();
      for (int left = 10; process == null; left--) {
        candidate = ThreadLocalRandom.current().nextInt(20000, 32000);
        List<String> words = new ArrayList<>(List.of(BINARY, "--port", "" + candidate, "--bind", "127.0.0.1", "--save", "",
            "--dir", "" + folder, "--logfile", folder + "/log", "--cluster-enabled", isCluster,
            "--cluster-announce-ip", "127.0.0.1"));
        words.addAll(List.of(module));
        process = start(words, candidate);
        if (left == 0) {
          throw new IllegalStateException(Files.readString(folder.resolve("log")));
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    port = candidate;
  }

  private static Process start(List<String> command, int port) throws IOException {
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    long end = System.nanoTime() + 20_000_000_000L;
    while (process.isAlive() && System.nanoTime() < end) {
      try (Jedis jedis = new Jedis("127.0.0.1", port)) {
        if (jedis.info("server").contains("process_id:" + process.pid())) {
          return process;
        }
      } catch (JedisException notYet) {
        LockSupport.parkNanos(2_000_000);
      }
    }
    process.destroyForcibly();
    return null;
  }

  /** Looks again and again until it is so. */
  public static void until(BooleanSupplier isSo) {
    long end = System.nanoTime() + 30_000_000_000L;
    while (!isSo.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new AssertionError("it never came to that");
      }
      LockSupport.parkNanos(2_000_000);
    }
  }

  public Object call(String... words) {
    try (Jedis jedis = new Jedis("127.0.0.1", port, 10_000)) {
      byte[] name = words[0].getBytes();
      return jedis.sendCommand(() -> name, Arrays.copyOfRange(words, 1, words.length));
    }
  }

  String text(String... words) {
    return new String((byte[]) call(words));
  }

  /** A number that INFO shows. */
  long info(String section, String field) {
    return text("INFO", section).lines().filter(line -> line.startsWith(field + ":"))
        .mapToLong(line -> Long.parseLong(line.substring(field.length() + 1).trim())).findFirst().orElseThrow();
  }

  long places() {
    return info("lock", "lock_places");
  }

  Map<String, Object> lock(String key) {
    return BuilderFactory.ENCODED_OBJECT_MAP.build(call("LOCK.INFO", key));
  }

  /** Whether nobody holds it or waits for it. */
  public boolean isFree(String key) {
    return lock(key).get("holding").equals(0L) && lock(key).get("waiting").equals(0L);
  }

  /** STOP makes it stand still, CONT go on. */
  void signal(String name) {
    try {
      new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override
  public void close() {
    signal("CONT");
    process.destroyForcibly().onExit().join();
  }
}
