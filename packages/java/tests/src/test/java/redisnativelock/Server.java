package redisnativelock;

import java.io.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BooleanSupplier;
import redis.clients.jedis.*;
import redis.clients.jedis.exceptions.JedisException;

/** A server with the lock module, started here. */
public final class Server implements AutoCloseable {
  static final String BINARY = System.getenv().getOrDefault("REDISLOCK_SERVER", "redis-server");
  static final String[] MODULE = {"--loadmodule",
      new File(System.getenv().getOrDefault("REDISLOCK_MODULE", "../../../target/release/libredislock.so")).getPath()};

  public final int port;
  final HostAndPort address;
  private final List<String> command;
  private Process process;

  public Server(String... options) {
    this(MODULE, options);
  }

  static Server withoutTheModule(String... options) {
    return new Server(new String[0], options);
  }

  private Server(String[] module, String[] options) {
    List<String> words = null;
    int candidate = 0;
    try {
      Path folder = Files.createTempDirectory("redislock");
      folder.toFile().deleteOnExit();
      for (int left = 10; process == null; left--) {
        candidate = ThreadLocalRandom.current().nextInt(20000, 32000);
        words = new ArrayList<>(List.of(BINARY, "--port", "" + candidate, "--bind", "127.0.0.1", "--save", "", "--dir",
            folder.toString(), "--logfile", folder + "/log"));
        words.addAll(Arrays.asList(options));
        words.addAll(Arrays.asList(module));
        process = start(words, candidate);
        if (left == 0) {
          throw new IllegalStateException(Files.readString(folder.resolve("log")));
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    command = words;
    port = candidate;
    address = new HostAndPort("127.0.0.1", port);
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
        pause();
      }
    }
    process.destroyForcibly();
    return null;
  }

  static void pause() {
    try {
      Thread.sleep(2);
    } catch (InterruptedException interrupt) {
      throw new IllegalStateException(interrupt);
    }
  }

  /** Looks again and again until it is so. */
  public static void until(BooleanSupplier isSo) {
    long end = System.nanoTime() + 30_000_000_000L;
    while (!isSo.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new AssertionError("it never came to that");
      }
      pause();
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

  long connections() {
    return text("CLIENT", "LIST").lines().count();
  }

  Map<String, Object> lock(String key) {
    Map<String, Object> shown = new HashMap<>();
    List<?> flat = (List<?>) call("LOCK.INFO", key);
    for (int at = 0; at < flat.size(); at += 2) {
      Object value = flat.get(at + 1);
      shown.put(new String((byte[]) flat.get(at)), value instanceof byte[] text ? new String(text) : value);
    }
    return shown;
  }

  /** Whether nobody holds it or waits for it. */
  public boolean isFree(String key) {
    return lock(key).get("holding").equals(0L) && lock(key).get("waiting").equals(0L);
  }

  private void signal(String name) {
    try {
      new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  void stop() {
    signal("STOP");
  }

  void goOn() {
    signal("CONT");
  }

  void kill() {
    process.destroyForcibly().onExit().join();
  }

  @Override
  public void close() {
    goOn();
    kill();
  }
}
