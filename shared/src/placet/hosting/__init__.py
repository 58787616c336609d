"""One service as a process: settings, servers, logs, signals. The only folder that knows all adapters."""
