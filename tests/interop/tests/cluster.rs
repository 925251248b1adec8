//! In a cluster Redisson listens on channels of the shard.

use redis::Value;
use redis_lock_interop::{Redisson, Topology, versions};
use redis_lock_testing::{Cluster, Int};

const WATCHDOG_MS: u64 = 30_000;

#[test]
#[ignore = "needs Redisson: make interop"]
fn each_side_is_woken_by_the_other_in_a_cluster() {
    let cluster = Cluster::start();
    // Both are in slot 7629, of the second node. One has braces of its own.
    for (version, lock) in versions().zip(["k", "{k}orders"]) {
        println!("Redisson {version}");
        let (mut native, mut observer) = (cluster.nodes[1].client(), cluster.nodes[1].client());
        let mut redisson = Redisson::start(
            version,
            Topology::Cluster,
            cluster.nodes[0].addr(),
            WATCHDOG_MS,
        );
        assert!(matches!(
            native.call(&format!("LOCK.ACQUIRE {lock} native LEASE 600000")),
            Value::Int(_)
        ));
        redisson.send_and_wait(&mut observer, "a", &format!("lock {lock}"));
        assert_eq!(native.call(&format!("LOCK.RELEASE {lock} native")), Int(1));
        assert_eq!(redisson.answer("a").result, "ok");
        native.send(&format!("LOCK.ACQUIRE {lock} native BLOCK 0"));
        cluster.nodes[1].await_info("blocked_clients", 1);
        assert_eq!(redisson.call("a", &format!("unlock {lock}")), "ok");
        assert!(matches!(native.reply(), Value::Int(_)));
        assert_eq!(native.call(&format!("LOCK.RELEASE {lock} native")), Int(1));
    }
}
