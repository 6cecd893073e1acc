# The programs of the C tests that are linked with some of the library's files, and with which.
linked += limits_check limits_mutations accounts_race region_noise own_process_check
limits_check_parts := limits
limits_mutations_parts := limits
accounts_race_parts := account own_process members
region_noise_parts := account own_process members
own_process_check_parts := own_process
programs += $(linked)

# Programs that need no file of ours: they meet the libraries as any other program does.
clients += allocations_race threads_race growth_race
linked_clients := $(clients:%=$(OUT)/%)
$(linked_clients): $(OUT)/%: $(root)/tests/integration/isolation/%.c $(root)/tests/integration/isolation/client.h | $(OUT)/open
	@echo "  CC  $(notdir $@)"
	$(QUIET)$(CC) $(needed) $(CFLAGS) $(LDFLAGS) -o $@ $< -ldl -pthread
programs += $(clients)
