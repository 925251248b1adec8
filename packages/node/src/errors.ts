// What can go wrong, and what the words of the server mean.

/** The base of this package's errors. What else the server refuses is the client library's own error. */
export class NativeLockError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}
/** The lock did not come free in time. */
export class LockBusy extends NativeLockError {}
/** The hold is over before its work: not renewed in time, broken, or deleted. */
export class LockLost extends NativeLockError {}
/** Waiting would close a cycle of owners that wait for each other; the text names it. */
export class Deadlock extends NativeLockError {}
/** Too few replicas have acknowledged it (NOREPLICAS): not known to be safe. */
export class NotSafe extends NativeLockError {}
/** Two waited for one lock under one owner's name: a mistake, never to be sent again. */
export class Superseded extends NativeLockError {}
/** The server has no lock module, or one that is too old. */
export class NoModule extends NativeLockError {}

const BY_CODE = new Map([["DEADLOCK", Deadlock], ["NOREPLICAS", NotSafe], ["SUPERSEDED", Superseded]]);
const PASSING = ["", "UNBLOCKED", "MOVED", "ASK", "READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS",
  "BUSY", "MISCONF", "MASTERDOWN"];

/** The code of what a server has answered, else nothing: libraries' own errors do not begin so. */
export function codeOf(error: unknown): string {
  if (!(error instanceof Error) || "syscall" in error) return "";
  return /^([A-Z]+)(?: |$)/.exec(error.message)?.[1] ?? "";
}

/** Whether the server answered: then the command has changed nothing. */
export const isRefusal = (error: unknown): boolean => !["", "NOREPLICAS"].includes(codeOf(error));

/** Whether the same request may succeed later: also what is no answer at all. */
export const mayPass = (error: unknown): boolean => PASSING.includes(codeOf(error)) && !(error instanceof NoModule);

/** This package's error for one of the client library's, if it has one. */
export function translated(error: unknown): unknown {
  const text = error instanceof Error ? error.message : "";
  if (/unknown command.*lock\./i.test(text)) {
    const remedy = "a line `loadmodule /path/to/libredislock.so` in redis.conf, then a restart";
    return new NoModule(`the server does not know LOCK.ACQUIRE: load the lock module there (${remedy})`);
  }
  const ours = BY_CODE.get(codeOf(error));
  return ours === undefined || error instanceof ours ? error : new ours(text, { cause: error });
}
