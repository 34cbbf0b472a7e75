// For `node --require`: the process ends when its standard input does, with the process that started it, however that dies.
process.stdin.on("end", () => process.exit()).resume();
