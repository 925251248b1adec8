// Where it is imported as a module it is the same code, so that there is one of everything in a process.
export * from "./index.js";
