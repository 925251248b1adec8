import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redisnativelock.Locks;
import redisnativelock.jedis.JedisAccess;

/** Takes a lock with the package as it is installed. */
public final class Program {
  private Program() {}

  public static void main(String[] arguments) throws InterruptedException {
    HostAndPort address = new HostAndPort("127.0.0.1", Integer.parseInt(arguments[0]));
    DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().build();
    try (JedisPooled jedis = new JedisPooled(address, config);
        Locks locks = Locks.create(JedisAccess.of(jedis, address, config))) {
      locks.lock("installed").call(hold -> {
        System.out.println("redis-native-lock is installed, and holds a lock with token " + hold.token());
        return null;
      });
    }
  }
}
