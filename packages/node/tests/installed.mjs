// Takes a lock with the installed package, on the server that REDIS_URL names.
import { createLocks } from "redis-native-lock";
import { Redis } from "ioredis";

const redis = new Redis(process.env.REDIS_URL);
const locks = createLocks(redis);
locks.using("installed", { wait: 5000 }, ({ token }) => {
  console.log(`${process.argv[1].split("/").at(-1)}: redis-native-lock is installed, and gave token ${token}`);
}).finally(() => redis.disconnect());
