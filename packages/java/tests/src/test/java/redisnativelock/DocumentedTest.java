package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;

import java.io.ByteArrayOutputStream;
import java.lang.reflect.Method;
import java.net.*;
import java.nio.file.*;
import java.time.*;
import java.util.*;
import java.util.regex.*;
import javax.tools.ToolProvider;
import net.javacrumbs.shedlock.core.*;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.*;

/** What README.md and that of the whole project show, and docs/migrating/shedlock.md, is compiled and run as it stands there. */
public class DocumentedTest extends WithServer {
  private static final Path PACKAGE = Path.of("").toAbsolutePath().getParent();
  private static final Pattern BLOCK = Pattern.compile("^```java\n(.*?)^```", Pattern.MULTILINE | Pattern.DOTALL);
  private static final List<Object> DONE = new ArrayList<>();

  /** What the blocks call. */
  public static class Application {
    public static String charge(String customer, long token) {
      DONE.add(customer);
      return "paid under token " + token;
    }

    public static void report() {
      DONE.add("report");
    }

    public static void lead(long token) {
      DONE.add("lead");
      throw new IllegalStateException("enough");
    }
  }

  private static List<String> blocks(Path document) throws Exception {
    return BLOCK.matcher(Files.readString(document)).results().map(MatchResult::group)
        .map(block -> block.replaceAll("```(java)?", "")).toList();
  }

  private Class<?> compiled(String body) throws Exception {
    Path folder = Files.createTempDirectory("documented");
    Path source = folder.resolve("Block.java");
    Files.writeString(source, "import java.time.*; import java.util.concurrent.*; import redis.clients.jedis.*;"
        + "import redisnativelock.*; import redisnativelock.jedis.*; import redisnativelock.shedlock.*;"
        + "import net.javacrumbs.shedlock.core.*; import org.springframework.context.annotation.*;"
        + "public class Block extends redisnativelock.DocumentedTest.Application {\n" + body + "\n}");
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    int result = ToolProvider.getSystemJavaCompiler().run(null, said, said, "-cp", System.getProperty("java.class.path"),
        "-d", folder.toString(), source.toString());
    assertEquals(0, result, said::toString);
    return new URLClassLoader(new URL[] {folder.toUri().toURL()}, getClass().getClassLoader()).loadClass("Block");
  }

  @Test
  void whatTheReadmeShows() throws Exception {
    List<String> blocks = blocks(PACKAGE.resolve("README.md"));
    String made = blocks.get(0).replace("\"localhost\", 6379", "\"127.0.0.1\", " + server.port);
    for (String block : blocks.subList(1, blocks.size())) {
      Method run = compiled("public static Object run(String customer) throws Exception {" + made + "if (true) {" + block
          + "}\nreturn null; }").getMethod("run", String.class);
      try {
        DONE.add(String.valueOf(run.invoke(null, "42")));
      } catch (java.lang.reflect.InvocationTargetException enough) {
        assertEquals("enough", enough.getCause().getMessage());
      }
    }
    assertTrue(DONE.containsAll(List.of("42", "report", "lead")), DONE::toString);
    assertTrue((Long) server.call("PTTL", "nightly") > 30_000, "for longer than its lease");
    String front = blocks(PACKAGE.resolve("../../README.md")).get(0);
    compiled("public static void run() throws Exception {" + made.substring(0, made.indexOf("Locks ")) + front + "}")
        .getMethod("run").invoke(null);
    assertTrue(server.isFree("customer:42") && server.isFree("leader"));
  }

  @Test
  void theLockProviderForShedLock() throws Exception {
    Class<?> application =
        compiled("public " + blocks(PACKAGE.resolve("../../docs/migrating/shedlock.md")).get(0).replace("@Bean", ""));
    HostAndPort address = new HostAndPort("127.0.0.1", server.port);
    try (JedisPooled jedis = new JedisPooled(address, Library.CONFIG)) {
      Method make = application.getMethod("lockProvider", JedisPooled.class, HostAndPort.class, JedisClientConfig.class);
      var provider = (LockProvider) make.invoke(application.getConstructor().newInstance(), jedis, address, Library.CONFIG);
      provider.lock(new LockConfiguration(Instant.now(), "report", Duration.ofSeconds(5), Duration.ZERO)).orElseThrow();
      assertFalse(server.isFree("job-lock:default:report"));
    }
  }
}
