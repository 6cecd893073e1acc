// ca-simulation asks cluster-autoscaler's own code what it would do: which waiting pods it takes for schedulable on the
// nodes that are there, and how many nodes of a template it would add for the others.
//
// Standard input has one JSON object (see question), standard output gets one (see answer).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	apiv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/cluster-autoscaler/pkg/config"
	ca_context "sigs.k8s.io/cluster-autoscaler/pkg/context"
	"sigs.k8s.io/cluster-autoscaler/pkg/core/podlistprocessor"
	"sigs.k8s.io/cluster-autoscaler/pkg/debuggingsnapshot"
	"sigs.k8s.io/cluster-autoscaler/pkg/estimator"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/clustersnapshot/predicate"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/clustersnapshot/store"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/framework"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/scheduling"
	kube_util "sigs.k8s.io/cluster-autoscaler/pkg/utils/kubernetes"
	"sigs.k8s.io/cluster-autoscaler/pkg/utils/taints"
)

const mostNodes = 100

type question struct {
	Nodes    []*apiv1.Node `json:"nodes"`
	Pods     []*apiv1.Pod  `json:"pods"`
	Template *apiv1.Node   `json:"template"`
}

type answer struct {
	// Seen are the pods that wait by their condition.
	Seen []string `json:"seen"`
	// Lacking are those of them that it finds no room for on the nodes there are.
	Lacking []string `json:"lacking"`
	// Nodes is how many it would add, and Served are the pods that it does that for.
	Nodes  int      `json:"nodes"`
	Served []string `json:"served"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ca-simulation:", err)
		os.Exit(1)
	}
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	ctx := context.Background()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	handle, err := framework.NewHandle(ctx, factory, nil, true, false)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	defer close(stop)
	factory.Start(stop)
	factory.WaitForCacheSync(stop)

	sorted := kube_util.ArrangePodsBySchedulability(asked.Pods, nil)
	snapshot := predicate.NewPredicateSnapshot(store.NewDeltaSnapshotStore(), handle, true, 1, false, 0)
	if err := snapshot.SetClusterState(asked.Nodes, sorted.Scheduled, nil, nil); err != nil {
		return err
	}
	autoscaling := &ca_context.AutoscalingContext{
		ClusterSnapshot:      snapshot,
		DebuggingSnapshotter: debuggingsnapshot.NewDebuggingSnapshotter(false),
	}
	said := answer{Seen: names(sorted.Unschedulable)}
	filter := podlistprocessor.NewFilterOutSchedulablePodListProcessor(scheduling.ScheduleAnywhere)
	lacking, err := filter.Process(autoscaling, sorted.Unschedulable)
	if err != nil {
		return err
	}
	said.Lacking = names(lacking)

	template, caErr := simulator.SanitizedTemplateNodeInfoFromNodeInfo(
		framework.NewNodeInfo(asked.Template, nil), "group", nil, false, taints.NewTaintConfig(config.AutoscalingOptions{}))
	if caErr != nil {
		return caErr
	}
	estimate := estimator.NewBinpackingNodeEstimator(
		snapshot,
		estimator.NewThresholdBasedEstimationLimiter([]estimator.Threshold{estimator.NewStaticThreshold(mostNodes, time.Minute)}),
		estimator.NewDecreasingPodOrderer(), nil, nil, false)
	nodes, served := estimate.Estimate(alike(lacking), template, nil)
	said.Nodes, said.Served = nodes, names(served)
	return json.NewEncoder(os.Stdout).Encode(said)
}

// alike groups pods by what they ask for, as those of one controller are.
func alike(pods []*apiv1.Pod) []estimator.PodEquivalenceGroup {
	var groups []estimator.PodEquivalenceGroup
	at := map[string]int{}
	for _, pod := range pods {
		key, _ := json.Marshal(pod.Spec)
		index, known := at[string(key)]
		if !known {
			index = len(groups)
			at[string(key)] = index
			groups = append(groups, estimator.PodEquivalenceGroup{})
		}
		groups[index].Pods = append(groups[index].Pods, pod)
	}
	return groups
}

func names(pods []*apiv1.Pod) []string {
	found := []string{}
	seen := map[types.UID]bool{}
	for _, pod := range pods {
		if !seen[pod.UID] {
			seen[pod.UID] = true
			found = append(found, pod.Name)
		}
	}
	return found
}
