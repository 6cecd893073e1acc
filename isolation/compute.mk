# What the compute limit is made of, on both sides of the turn page. The order is that of mutexes, as in memory.mk.
compute := turn compute_flow compute_turn compute_marks compute_estimate compute_watch compute \
	hook_launch hook_graph hook_copy hook_copy_shaped

arbiter := arbiter arbiter_containers arbiter_gpu arbiter_page arbiter_schedule turn limits

clients += launches_race
linked += schedule_check schedule_simulation estimates_check
schedule_check_parts := arbiter_schedule
schedule_simulation_parts := arbiter_schedule
estimates_check_parts := compute_estimate

.DEFAULT_GOAL := all
$(OUT)/arbiter: $(arbiter:%=$(OUT)/objects/arbiter/%.o)
	@echo "  LD  $(notdir $@)"
	$(QUIET)$(CC) $(EXTRA) $(LDFLAGS) -o $@.new $^ -l:libpthread.so.0
	$(QUIET)mv $@.new $@

$(OUT)/objects/arbiter/%.o: $(here)/%.c $(here)/Makefile $(here)/compute.mk | $(OUT)/objects/arbiter
	@echo "  CC  arbiter/$(notdir $@)"
	$(QUIET)$(CC) $(needed) $(FLOOR) $(CFLAGS) -c -o $@ $<

$(OUT)/objects/arbiter:
	mkdir -p $@

-include $(wildcard $(OUT)/objects/arbiter/*.d)
