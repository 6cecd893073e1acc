// Command clientgo drives the playground's API server as a Kubernetes component would: with client-go's
// typed clients (JSON and protobuf), an informer that must survive a forgotten history, and a leader election.
//
// It speaks with its test over standard input and output: a line "PHASE" when it has come to a phase,
// and goes on when it reads a line.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

const namespace = "default"

func check(err error, doing string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", doing, err)
		os.Exit(1)
	}
}

func expect(holds bool, format string, values ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, format+"\n", values...)
		os.Exit(1)
	}
}

func pod(name string) *corev1.Pod {
	memory := corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("3")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "busybox:1", Resources: corev1.ResourceRequirements{Limits: memory},
		}}},
	}
}

// seen is what the informer reported, by pod name.
type seen struct {
	sync.Mutex
	present map[string]string
	deleted map[string]bool
	changed chan struct{}
}

func (s *seen) note(change func()) {
	s.Lock()
	change()
	s.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *seen) until(doing string, holds func() bool) {
	limit := time.After(20 * time.Second)
	for {
		s.Lock()
		done := holds()
		s.Unlock()
		if done {
			return
		}
		select {
		case <-s.changed:
		case <-limit:
			fmt.Fprintf(os.Stderr, "the informer did not show: %s\n", doing)
			os.Exit(1)
		}
	}
}

func watchPods(ctx context.Context, client kubernetes.Interface) *seen {
	found := &seen{present: map[string]string{}, deleted: map[string]bool{}, changed: make(chan struct{}, 1)}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			p := obj.(*corev1.Pod)
			found.note(func() { found.present[p.Name] = p.Labels["step"] })
		},
		UpdateFunc: func(_, obj any) {
			p := obj.(*corev1.Pod)
			found.note(func() { found.present[p.Name] = p.Labels["step"] })
		},
		DeleteFunc: func(obj any) {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
			check(err, "reading a deleted key")
			_, name, err := cache.SplitMetaNamespaceKey(key)
			check(err, "splitting a key")
			found.note(func() { delete(found.present, name); found.deleted[name] = true })
		},
	})
	check(err, "adding a handler")
	factory.Start(ctx.Done())
	expect(cache.WaitForCacheSync(ctx.Done(), informer.HasSynced), "the informer did not sync")
	return found
}

func writePods(ctx context.Context, client kubernetes.Interface, found *seen, prefix string) {
	pods := client.CoreV1().Pods(namespace)
	for number := range 10 {
		made, err := pods.Create(ctx, pod(fmt.Sprintf("%s-%d", prefix, number)), metav1.CreateOptions{})
		check(err, "creating a pod")
		expect(made.Spec.SchedulerName == "ack-co-scheduler", "scheduler %q", made.Spec.SchedulerName)
		request := made.Spec.Containers[0].Resources.Requests["aliyun.com/gpu-mem"]
		expect(request.Value() == 3, "request %s", request.String())
	}
	name := prefix + "-0"
	_, err := pods.Create(ctx, pod(name), metav1.CreateOptions{})
	expect(apierrors.IsAlreadyExists(err), "expected AlreadyExists, got %v", err)

	stale, err := pods.Get(ctx, name, metav1.GetOptions{})
	check(err, "getting a pod")
	fresh := stale.DeepCopy()
	fresh.Labels["step"] = "updated"
	_, err = pods.Update(ctx, fresh, metav1.UpdateOptions{})
	check(err, "updating a pod")
	_, err = pods.Update(ctx, stale, metav1.UpdateOptions{})
	expect(apierrors.IsConflict(err), "expected Conflict, got %v", err)
	found.until("an update", func() bool { return found.present[name] == "updated" })
	check(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		current, err := pods.Get(ctx, name, metav1.GetOptions{})
		check(err, "getting a pod")
		current.Status.Phase = corev1.PodRunning
		current.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		_, err = pods.UpdateStatus(ctx, current, metav1.UpdateOptions{})
		return err
	}), "updating a status")
	patch := []byte(`{"metadata":{"labels":{"step":"patched"}}}`)
	_, err = pods.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	check(err, "patching a pod")
	found.until("a patch", func() bool { return found.present[name] == "patched" })

	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"gpushare.dev/allocation": "{}"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "n1"},
	}
	check(pods.Bind(ctx, binding, metav1.CreateOptions{}), "binding a pod")
	expect(apierrors.IsConflict(pods.Bind(ctx, binding, metav1.CreateOptions{})), "a second binding was taken")
	bound, err := pods.Get(ctx, name, metav1.GetOptions{})
	check(err, "getting a bound pod")
	expect(bound.Spec.NodeName == "n1" && bound.Annotations["gpushare.dev/allocation"] == "{}", "not bound: %v", bound)

	check(pods.Delete(ctx, prefix+"-1", metav1.DeleteOptions{}), "deleting a pod")
	found.until("a deletion", func() bool { return found.deleted[prefix+"-1"] })
	page, err := pods.List(ctx, metav1.ListOptions{Limit: 4, LabelSelector: "app!=" + name})
	check(err, "listing a page")
	expect(len(page.Items) == 4 && page.Continue != "", "a page of %d", len(page.Items))
	_, err = pods.Get(ctx, "nowhere", metav1.GetOptions{})
	expect(apierrors.IsNotFound(err), "expected NotFound, got %v", err)
}

func writeOthers(ctx context.Context, client kubernetes.Interface) {
	replicas, labels := int32(0), map[string]string{"a": "b"}
	deployments := client.AppsV1().Deployments(namespace)
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("x").Spec},
		},
	}, metav1.CreateOptions{})
	check(err, "creating a deployment")
	scale, err := deployments.GetScale(ctx, "d", metav1.GetOptions{})
	check(err, "getting a scale")
	expect(scale.Spec.Replicas == 0 && scale.Status.Selector == "a=b", "scale %v", scale)
	scale.Spec.Replicas = 4
	scale, err = deployments.UpdateScale(ctx, "d", scale, metav1.UpdateOptions{})
	check(err, "updating a scale")
	expect(scale.Spec.Replicas == 4, "scaled to %d", scale.Spec.Replicas)

	_, err = client.EventsV1().Events(namespace).Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: "e"},
		EventTime:           metav1.NowMicro(),
		ReportingController: "clientgo",
		ReportingInstance:   "one",
		Action:              "Testing",
		Reason:              "Tested",
		Type:                corev1.EventTypeNormal,
		Note:                "seen in both groups",
		Regarding:           corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: namespace},
	}, metav1.CreateOptions{})
	check(err, "creating an event")
	event, err := client.CoreV1().Events(namespace).Get(ctx, "e", metav1.GetOptions{})
	check(err, "getting the event from the core group")
	expect(event.Message == "seen in both groups" && event.InvolvedObject.Name == "p", "event %v", event)

	version, err := client.Discovery().ServerVersion()
	check(err, "asking for the version")
	expect(version.Minor == "36", "version %s", version.String())
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	check(err, "discovering")
	expect(len(lists) > 8, "only %d group versions", len(lists))
}

func lead(ctx context.Context, client kubernetes.Interface, name string, leading chan<- string) context.CancelFunc {
	ctx, cancel := context.WithCancel(ctx)
	go leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: namespace},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		ReleaseOnCancel: true,
		LeaseDuration:   3 * time.Second,
		RenewDeadline:   2 * time.Second,
		RetryPeriod:     100 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leading <- name },
			OnStoppedLeading: func() {},
		},
	})
	return cancel
}

func elect(ctx context.Context, client kubernetes.Interface) {
	leading := make(chan string, 2)
	next := func() string {
		select {
		case name := <-leading:
			return name
		case <-time.After(15 * time.Second):
			fmt.Fprintln(os.Stderr, "no leader")
			os.Exit(1)
			return ""
		}
	}
	stop := lead(ctx, client, "one", leading)
	expect(next() == "one", "the first did not lead")
	defer lead(ctx, client, "two", leading)()
	stop()
	expect(next() == "two", "the second did not take over")
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	check(err, "reading the kubeconfig")
	config.QPS, config.Burst = 500, 500
	asJSON := kubernetes.NewForConfigOrDie(config)
	binary := *config
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	binary.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	asProtobuf := kubernetes.NewForConfigOrDie(&binary)

	input := bufio.NewScanner(os.Stdin)
	phase := func(name string) {
		fmt.Println(name)
		expect(input.Scan(), "the test went away")
	}
	found := watchPods(ctx, asJSON)
	writePods(ctx, asJSON, found, "json")
	writePods(ctx, asProtobuf, found, "protobuf")
	writeOthers(ctx, asProtobuf)
	phase("written")
	// The test has cut the watch, deleted a pod, made another, and let the history be forgotten.
	found.until("a deletion during the gap", func() bool { return found.deleted["json-2"] })
	found.until("a creation during the gap", func() bool { _, there := found.present["in-the-gap"]; return there })
	elect(ctx, asProtobuf)
	fmt.Println("done")
}
