#ifndef FAKEGPU_CUDA_ENTRY_LOG_H
#define FAKEGPU_CUDA_ENTRY_LOG_H

/* One line on stderr: what failed and what to do. */
void driver_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
