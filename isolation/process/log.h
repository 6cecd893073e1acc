/* What the library tells people: one line each on stderr, and only where GPUSHARE_LOG is set (to anything but 0). */
#ifndef ISOLATION_WORDS_H
#define ISOLATION_WORDS_H

/* At most 512 bytes; the line end is added. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
