/* The library's messages: one line each on stderr, and only where GPUSHARE_LOG is set (to anything but 0). */
#ifndef ISOLATION_PROCESS_LOG_H
#define ISOLATION_PROCESS_LOG_H

/* At most 512 bytes; the line end is added. */
void log_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
