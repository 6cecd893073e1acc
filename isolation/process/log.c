#define _GNU_SOURCE
#include "process/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void log_message(const char *format, ...)
{
    char line[544] = "gpushare: ";
    const char *wanted = getenv("GPUSHARE_LOG");
    if (!wanted || !*wanted || !strcmp(wanted, "0"))
        return;
    size_t size = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + size, sizeof line - size - 1, format, arguments);
    va_end(arguments);
    size = strlen(line);
    line[size++] = '\n';
    if (write(STDERR_FILENO, line, size) < 0)
        return; /* nothing reads stderr */
}
