//! Commands that the server reads on several threads.

use redis_lock_testing::{Client, Int, LONG, Server, pack};

const ROUNDS: usize = 20;
const A_WRITE: usize = 200;
/// The server hangs up on who has not logged in and has more than 1 KB of replies to read.
const OF_A_STRANGER: usize = 20;

fn ask(clients: &mut [Client], commands: &[u8]) {
    for client in clients {
        client.connection.send_bytes(commands).unwrap();
    }
}

/// Where the server would ask the module for a command's keys, it would do so on the
/// thread that reads the command, also for clients that have not logged in.
#[test]
fn guarded_commands_may_be_read_on_other_threads_while_the_server_writes() {
    let options = ["--io-threads", "4", "--appendonly", "yes"];
    let server = Server::start_with(&options);
    let mut observer = server.client();
    let token = observer.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    let mut writers: Vec<Client> = (0..8).map(|_| server.client()).collect();
    let mut strangers: Vec<Client> = (0..8).map(|_| server.client()).collect();
    for writer in &mut writers {
        // It is logged in from its first command on.
        assert_eq!(writer.bulk("PING"), "PONG");
    }
    observer.call("CONFIG SET requirepass secret");
    for stranger in &mut strangers {
        assert_eq!(stranger.bulk("RESET"), "RESET");
    }
    let guarded = pack(&["LOCK.GUARD", "k", &token.to_string(), "INCR", "n"]);
    let (of_a_stranger, guarded) = (guarded.repeat(OF_A_STRANGER), guarded.repeat(A_WRITE));
    let set = pack(&["HSET", "h", "a", "b"]);
    let plain = [set, pack(&["PEXPIRE", "h", "60000"])].concat();
    let commands = [guarded, plain.repeat(A_WRITE)].concat();
    for round in 0..ROUNDS {
        ask(&mut writers, &commands);
        ask(&mut strangers, &of_a_stranger);
        for writer in &mut writers {
            let replies: Vec<_> = (0..3 * A_WRITE).map(|_| writer.reply()).collect();
            assert_eq!(replies.last(), Some(&Int(1)), "round {round}");
        }
        for stranger in &mut strangers {
            for _ in 0..OF_A_STRANGER {
                let error = stranger.reply_error();
                assert!(error.starts_with("NOAUTH "), "{error}");
            }
        }
    }
    let increments = i64::try_from(ROUNDS * writers.len() * A_WRITE).unwrap();
    assert_eq!(observer.bulk("GET n"), increments.to_string());
}
